"""Tasks as a user types them: the list, one of them, a run on several, its evaluation and its resume."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import forks
import pytest
from commands import SIGNALLED, Run, comparable, contents, environment, metrics

FIVE = (
    """
class Sums:
    levels = 3

    def __init__(self, level=0, first=0):
        self.terms, self.first = level + 2, first

    def problems(self, split, seed):
        import random
        draw = random.Random(f"{type(self).__name__} {self.terms} {split} {seed if split == 'train' else ''}")
        while True:
            numbers = [self.first, *(draw.randint(0, 9) for _ in range(self.terms))]
            yield {"question": "+".join(map(str, numbers)), "answer": None, "sum": sum(numbers)}

    def score(self, row, answer):
        return max(0.0, 1.0 - abs(int(answer) - row["sum"]) / 4)
"""
    + "".join(f"class {name}(Sums): pass\n" for name in "ABCD")
    + """
class E(Sums):
    def score(self, row, answer):
        raise KeyError(answer)
"""
)


def test_tasks_are_listed_and_shown(gtpo: Run) -> None:
    pytest.importorskip("reasoning_gym")
    listed = json.loads(gtpo("tasks", "--json").stdout)["tasks"]
    names = [task["name"] for task in listed]
    assert names[:2] == ["arithmetic", "word_problems"]
    assert len([name for name in names if name.startswith("reasoning_gym/")]) == 106
    shown = gtpo("tasks", "reasoning_gym/chain_sum", "--set", "data.config={max_terms: 2, max_digits: 1}").stdout
    assert re.search(r"max_terms +2\b", shown)
    assert "levels of num_terms: 2, 3, 4" in shown
    problems = re.findall(r"problem: (\d) ([+-]) (\d) =\n-- answer\n(-?\d+)\n", shown)
    assert len(problems) == 2
    assert all(eval(f"{first}{sign}{second}") == int(gold) for first, sign, second, gold in problems)
    suggested = (
        "gtpo tasks reasoning_gym/chain_sum --recipe tiny_tasks --set 'data.config={max_terms: 2, max_digits: 1}'"
    )
    assert shown.rstrip().splitlines()[-1].endswith(suggested)
    # of a recipe's mixture, it is the part with that configuration
    scored = json.loads(
        gtpo("tasks", "reasoning_gym/gcd", "--recipe", "tiny_tasks", "--set", "objective.probe.num_prompts=16",
             "--json").stdout
    )  # fmt: skip
    assert scored["keys"]["max_value"] == 200
    assert 0.1 < scored["first_scores"]["accuracy"] < 0.9
    assert scored["first_scores"]["format_rate"] > 0.6


def test_a_task_that_cannot_be_made_is_found_by_recipes_check(gtpo: Run, tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(
        "class Between:\n"
        "    def __init__(self, width=3): pass\n"
        "    def problems(self, split, seed):\n"
        "        yield {'question': '1?', 'answer': '1'}\n"
    )
    for benchmark, config, said in (
        ("my_task.py:Between", "{}", None),
        ("my_task.py:Betwen", "{}", "data.benchmark: my_task.py:Betwen: module my_task.py has no function Betwen"),
        ("my_task.py:Between", "{wdth: 3}", "got an unexpected keyword argument 'wdth'"),
        ("reasoning_gym/chain_sum", "{max_terms: 3}", None),
        ("reasoning_gym/chain_smu", "{}", "reasoning-gym has no such task; did you mean chain_sum?"),
        ("reasoning_gym/chain_sum", "{max_trms: 3}", "data.config.max_trms: reasoning_gym/chain_sum has no such key"),
    ):
        data = f"{{benchmark: '{benchmark}', config: {config}}}"
        (tmp_path / "mine.yaml").write_text(f"model: {{name: 'builtin:tiny'}}\ndata: {data}\n")
        done = gtpo("recipes", "check", "mine.yaml", code=0 if said is None else 2)
        assert said is None or said in " ".join(done.stderr.split())
    (tmp_path / "mine.yaml").write_text("model: {name: 'builtin:tiny'}\ndata: {benchmark: 'away.py:Task'}\n")
    assert "task away.py:Task: there is no module away.py here" in gtpo("recipes", "check", "mine.yaml").stdout


def test_five_tasks_with_a_curriculum_killed_in_a_generation_and_resumed(gtpo: Run, tmp_path: Path) -> None:
    (tmp_path / "five.py").write_text(FIVE)
    first = gtpo("tasks", "five.py:A", "--recipe", "tiny_arithmetic", "--set", "objective.probe.num_prompts=4").stdout
    assert re.search(r"builtin:tiny at first, 32 completions of the first 4 problems: [\d.]+% right, score 0", first)
    weights = ", ".join(f"five.py:{name}: {weight}" for name, weight in zip("ABCDE", (2, 1, 1, 1, 1), strict=True))
    changes = [
        "data.benchmark=mixture", f"data.mixture={{{weights}}}", "data.config={five.py:C: {first: 4}}", "data.limit=12",
        "data.curriculum={raise_at: 0.3, lower_at: 0.05, over: 12}", "data.rest_after=1", "training.max_steps=12",
        "rollout.steps_per_generation=4", "rollout.prompts_per_step=5", "rollout.group_size=6",
        "rollout.max_completion_tokens=32", "objective.initial_entropy=0.1", "training.save_every=3",
        "rewards.accuracy.partial_credit=true", "tracking.log_completions_every=4",
    ]  # fmt: skip
    train = ["train", "--quiet", "--recipe", "tiny_arithmetic", *(a for one in changes for a in ("--set", one))]
    gtpo(*train, "--name", "whole")
    command = [SIGNALLED, str(int(signal.SIGKILL)), "7", *train, "--name", "killed"]
    assert forks.run(command, cwd=tmp_path, env=environment()).returncode == -signal.SIGKILL
    gtpo("train", "--quiet", "--resume", "runs/killed")
    whole, killed = (tmp_path / "runs" / name for name in ("whole", "killed"))
    assert comparable(whole) == comparable(killed)
    assert contents(whole) == contents(killed)
    rows = metrics(whole)
    levels = {name: [row[f"tasks/five.py:{name}/level"] for row in rows] for name in "ABCDE"}
    assert max(map(max, levels.values())) >= 1.0
    moves = {place + 1 for own in levels.values() for place in range(1, 12) if own[place] != own[place - 1]}
    assert moves <= {5, 9}  # between generations only
    assert rows[-1]["tasks/resting"] > 0.0
    assert sum(row["rewards/errors"] for row in rows) > 0.0  # E's
    assert max(row.get("tasks/five.py:E/accuracy_rate", 0.0) for row in rows) == 0.0

    (found,) = json.loads(gtpo("eval", "runs/whole", "--limit", "3", "--pass-k", "2", "--json").stdout)["evaluations"]
    assert {"accuracy", "score", "pass@2", "best@2"} <= found["scores"].keys()
    assert list(found["parts"]) == [f"five.py:{name}" for name in "ABCDE"]
    assert found["scores"]["score"]["estimate"] >= found["scores"]["accuracy"]["estimate"]
    said = gtpo("eval", "runs/whole", "--limit", "3", "--pass-k", "2").stdout
    assert re.search(
        r"^step-000012: the task's verifier raised an exception over \d completions? of 30, which count as wrong; "
        r"the first: KeyError: '-?\d+'$", said, re.M,
    )  # fmt: skip
    assert re.search(r"^ *five\.py:E +3 +[\d.]+ % ", said, re.M)
    assert re.search(r"^ *mean of these +[\d.]+ % ", said, re.M)
    gtpo("eval", "runs/whole", "--benchmark", "five.py:C", "--limit", "3", "--pass-k", "2")
    (samples,) = (whole / "evaluation").glob("five.py-C-*/*/samples.jsonl")
    questions = [json.loads(line)["question"] for line in samples.read_text().splitlines()]
    assert len(questions) == 3
    assert all(re.fullmatch(r"4\+\d\+\d", question) for question in questions)  # its configuration holds here too
    gtpo("report", "runs/whole")
    page = (tmp_path / "runs/whole/report/report.html").read_text()
    assert "five.py:A: level" in page
    assert "Prompts that rest" in page
    said = gtpo("inspect", "runs/whole").stdout
    assert re.search(r"answer .* of score (0|1|0\.25|0\.5|0\.75)\b", said)
    tried = gtpo(
        "try-reward", "--recipe", "tiny_arithmetic", "--set", "data.benchmark=five.py:A", "--prompts", "1"
    ).stdout
    verdicts = re.findall(r"verdict +(correct|wrong), the task's score is (1|0|0\.25|0\.5|0\.75) of 1$", tried, re.M)
    assert len(verdicts) >= 4
    assert all((word == "correct") == (score == "1") for word, score in verdicts)
