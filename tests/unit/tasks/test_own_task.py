"""A class of the user's own as a task: its problems, its score where answers are graded, and what is said of faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gtpo_cli.data import load_problems
from gtpo_cli.errors import DataError, RewardError
from gtpo_cli.recipe import load_recipe
from gtpo_cli.recipe.data import SourceRecipe
from gtpo_cli.rewards import Scorer, check_rewards
from gtpo_cli.runs.folder import RunFolder, Trust
from gtpo_cli.tasks.making import task_problems
from gtpo_cli.types import Completion, Problem

TASK = '''
import random


class Between:
    """A number between two others."""

    def __init__(self, width=3):
        self.width = width

    def problems(self, split, seed):
        draw = random.Random(f"{split} {seed if split == 'train' else ''}")
        while True:
            low = draw.randint(0, 9)
            yield {"question": f"{low}+0", "answer": None, "span": (low, low + self.width), "kinds": {"a", "b", "c"}}

    def score(self, row, answer):
        low, high = row["span"]
        return 1.0 if low < float(answer) < high else 0.25


class Listed:
    def problems(self, split, seed):
        return [{"question": q, "answer": len(q), "solution": q} for q in ("ab", "abc", "abcd")]


class Stern(Listed):
    def score(self, row, answer):
        return 0.5


class Lenient(Listed):
    def score(self, row, answer):
        return 1.0


class Partly(Listed):
    def score(self, row, answer):
        return 1.0 if answer == str(row["answer"]) else 0.25


class Greedy(Listed):
    def score(self, row, answer):
        return 3.0 if answer == "x" else float(answer == str(row["answer"]))


class Unordered(Listed):
    def problems(self, split, seed):
        return [{"question": "".join({"a", "b", "c", "d", "e", "f"}), "answer": 1}]


class Broken(Listed):
    def problems(self, split, seed):
        yield {"question": "half", "answer": r"\\frac{1}{"}
        if split == "train":
            yield {"question": "one", "answer": 1}


class Blank(Listed):
    def problems(self, split, seed):
        return [{"question": "blank", "answer": " "}]


class Silent(Listed):
    def problems(self, split, seed):
        return [{"question": "no answer"}]


class Raising(Listed):
    def problems(self, split, seed):
        yield {"question": "one", "answer": 1}
        raise KeyError("row")


class NoTask:
    pass
'''


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)


pytestmark = pytest.mark.usefixtures("_here")
RECIPE = load_recipe("tiny_arithmetic").rewards


def made(
    name: str, count: int | None = None, *, split: str = "train", seed: int = 1, **config: object
) -> list[Problem]:
    return list(task_problems(f"my_task.py:{name}", config, split, seed, count))


def completion(answer: str) -> Completion:
    return Completion((1,), (0.0,), "stop", f"<reasoning>x</reasoning><answer>{answer}</answer>")


def test_the_score_is_the_class_s_own_and_only_1_is_right() -> None:
    (problem,) = made("Between", 1, width=5)
    low = int(problem.question.partition("+")[0])
    answers = [completion(text) for text in (str(low + 1), str(low + 4.5), str(low + 5), "seven")]
    with Scorer(RECIPE) as scorer:
        verdicts = scorer.score(problem, answers)
        assert [verdict.correct for verdict in verdicts] == [True, True, False, False]
        assert [verdict.accuracy_score for verdict in verdicts] == [10.0, 10.0, 0.0, 0.0]
        assert [verdict.score for verdict in verdicts] == [1.0, 1.0, 0.25, 0.0]
        assert [verdict.failed is not None for verdict in verdicts] == [False, False, False, True]
        assert "could not convert string to float: 'seven'" in str(verdicts[3].failed)
    partly = RECIPE.with_values({"accuracy.partial_credit": True})
    with Scorer(partly) as scorer:
        assert [verdict.accuracy_score for verdict in scorer.score(problem, answers)] == [10.0, 10.0, 2.5, 0.0]


def test_the_class_of_the_documentation_is_a_task(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs/tasks.md"
    (text,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
    (tmp_path / "my_task.py").write_text(text)
    problems = made("Between", 9, width=4)
    check_rewards(RECIPE, problems)
    low = int(problems[0].question.split()[4])
    assert problems[0].question == f"Name a number between {low} and {low + 4}."
    with Scorer(RECIPE) as scorer:
        verdicts = scorer.score(problems[0], [completion(str(low + step)) for step in (0, 1, 3, 4)])
    assert [verdict.correct for verdict in verdicts] == [False, True, True, False]


def test_a_larger_count_begins_with_the_same_problems_and_the_test_does_not_depend_on_the_seed() -> None:
    assert made("Between", 5, seed=3) == made("Between", 9, seed=3)[:5]
    assert made("Between", 9, seed=3) != made("Between", 9, seed=4)
    assert made("Between", 9, split="test", seed=3) == made("Between", 9, split="test", seed=4)
    first = made("Between", 1)[0]
    assert (first.id, first.source, first.gold) == (
        "my_task.py:Between/train/1", "my_task.py:Between[train]:1", "",
    )  # fmt: skip


def test_without_a_score_answers_are_compared() -> None:
    problems = made("Listed")
    assert [(p.question, p.gold, p.solution) for p in problems] == [
        ("ab", "2", "ab"),
        ("abc", "3", "abc"),
        ("abcd", "4", "abcd"),
    ]
    with Scorer(RECIPE) as scorer:
        verdicts = scorer.score(problems[0], [completion("2"), completion("2.0"), completion("3")])
    assert [verdict.correct for verdict in verdicts] == [True, True, False]


def test_a_gold_answer_that_nothing_can_equal_drops_its_problem() -> None:
    data = {"benchmark": "my_task.py:Broken"}
    loaded = load_problems(SourceRecipe.model_validate(data), seed=1)
    assert [problem.gold for problem in loaded.problems] == ["1"]
    assert [row.reason for row in loaded.dropped] == [r"unusable gold answer: '\\frac{1}{'"]
    with pytest.raises(DataError, match=r"my_task\.py:Broken: no usable problem; dropped 1 row"):
        load_problems(SourceRecipe.model_validate(data | {"split": "test"}), seed=1)


def test_sets_of_texts_have_the_same_order_in_every_process() -> None:
    assert len({made("Unordered")[0].question for _ in range(4)}) == 1


def test_a_score_that_can_never_be_earned_or_always_is_refused() -> None:
    with pytest.raises(RewardError, match=r"Stern: its score\(\) gives its own answer '2' to 'ab' 0.5; only"):
        check_rewards(RECIPE, made("Stern"))
    with pytest.raises(RewardError, match=r"Lenient: its score\(\) pays for nonsense: for the empty answer it gives 1"):
        check_rewards(RECIPE, made("Lenient"))
    check_rewards(RECIPE.with_values({"accuracy.pays_nonsense": True}), made("Lenient"))
    check_rewards(RECIPE.with_values({"accuracy.weight": 0.0}), made("Stern"))  # it is never asked
    partly = RECIPE.with_values({"accuracy.partial_credit": True})
    check_rewards(RECIPE, made("Partly"))
    with pytest.raises(
        RewardError, match=r"Partly: its score\(\) pays for nonsense: for the empty answer it gives 0.25"
    ):
        check_rewards(partly, made("Partly"))


def test_a_score_above_1_is_an_error_of_the_task() -> None:
    with Scorer(RECIPE) as scorer:
        (verdict,) = scorer.score(made("Greedy")[0], [completion("x")])
    assert (verdict.failed, verdict.correct, verdict.score) == ("its score 3.0 is not from 0 to 1", False, 0.0)


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("Listed", {"width": 3}, r"my_task.py:Listed: TypeError: Listed\(\) takes no arguments"),
        ("Missing", {}, "my_task.py:Missing: module my_task.py has no function Missing"),
        ("NoTask", {}, r"makes no task: it has no method problems\(split, seed\)"),
        ("Blank", {}, r"the question 'blank' has no answer, and the task has no score\(\)"),
        ("Silent", {}, r"the question 'no answer' has no answer, and the task has no score\(\)"),
        ("Raising", {}, r"my_task.py:Raising: at my_task.py:\d+ in Raising.problems: KeyError: 'row'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(name: str, config: dict[str, int], words: str) -> None:
    with pytest.raises(DataError, match=words):
        made(name, **config)


def test_more_than_there_are_is_an_error_of_training_alone() -> None:
    with pytest.raises(DataError, match=r"data.limit: my_task.py:Listed has 3 train problems; 4 were asked for"):
        made("Listed", 4)
    assert len(made("Listed", 4, split="test")) == 3


@pytest.mark.parametrize(
    "data", ["{benchmark: 'my_task.py:Listed'}", "{mixture: {'my_task.py:Listed': 1, arithmetic: 2}}"]
)
def test_a_stranger_s_run_cannot_name_a_class_beside_it(tmp_path: Path, data: str) -> None:
    run = RunFolder(tmp_path / "theirs/runs/a")
    run.path.mkdir(parents=True)
    (tmp_path / "theirs/my_task.py").write_text(TASK)
    text = data.replace("my_task.py", str(tmp_path / "theirs/my_task.py"))
    run.recipe_file.write_text(f"model: {{name: 'builtin:tiny'}}\ndata: {text}\n")
    with pytest.raises(Exception, match="is in a folder with runs and may have come with one"):
        run.recipe_to_run([], trust=Trust())
    assert run.recipe_to_run([], trust=Trust(run_code=True)).data.sources[0].benchmark.endswith("my_task.py:Listed")
