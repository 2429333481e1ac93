"""Format and accuracy rewards, and the Scorer that sums them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gtpo_cli.errors import RewardError
from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.rewards import Scorer, accuracy_reward, format_reward
from gtpo_cli.rewards.score import length_penalty
from gtpo_cli.types import Completion, Group, Problem

GOOD = "<reasoning>9+9</reasoning><answer>18</answer>"


def completion(text: str) -> Completion:
    return Completion(token_ids=(), logprobs=(), finish_reason="stop", text=text)


def problem(gold: str = "18", name: str = "p1") -> Problem:
    return Problem(id=name, question="9+9?", gold=gold)


# text, format reward in strict and presence mode
FORMATS = [
    (GOOD, 10, 10),
    ("Well, " + GOOD + " ok", 10, 10),
    ("18", 0, 0),
    ("", 0, 0),
    ("<answer>18</answer>", 1, 1),
    ("<reasoning>9+9</reasoning>", 1, 1),
    ("<reasoning>9+9</reasoning><answer>18", 1, 1),
    ("<reasoning>9+9</reasoning>18</answer>", 1, 1),
    ("9+9</reasoning><answer>18</answer>", 1, 1),
    ("<reasoning>9+9<answer>18</answer>", 1, 1),
    ("<reasoning>9+9<answer>18", 1, 1),
    (GOOD + GOOD, 1, 10),
    (GOOD + "<answer>", 1, 10),
    ("</answer><answer></reasoning><reasoning>", 1, 10),
    ("<reasoning><answer>18</answer></reasoning>", 1, 10),
    ("<answer>18</answer><reasoning>9+9</reasoning>", 1, 10),
]


@pytest.mark.parametrize(("text", "strict", "presence"), FORMATS)
def test_format_reward(text: str, strict: float, presence: float) -> None:
    assert format_reward(text) == strict
    assert format_reward(text, mode="presence") == presence


@pytest.mark.parametrize(
    ("text", "strict", "presence"),
    [
        (GOOD, 10, 10),
        ("<reasoning></reasoning><answer> $18.00 </answer>", 10, 10),
        ("<reasoning></reasoning><answer>19</answer>", 0, 0),
        ("<reasoning></reasoning><answer>118</answer>", 0, 0),
        ("<reasoning></reasoning><answer>17 or 18</answer>", 0, 0),
        ("<answer>18</answer>", 0, 10),
        (GOOD + "<answer>19</answer>", 0, 0),
        (GOOD + " and so on", 10, 10),
        ("18", 0, 0),
        ("<reasoning>18</reasoning><answer></answer>", 0, 0),
    ],
)
def test_accuracy_reward(text: str, strict: float, presence: float) -> None:
    assert accuracy_reward(text, "18") == strict
    assert accuracy_reward(text, "18", mode="presence") == presence


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    with Scorer(RewardsRecipe(), num_workers=1) as scorer:
        scorer.workers.timeout_seconds = 1.0
        yield scorer


def test_the_paper_rewards_are_0_1_10_11_or_20() -> None:
    texts = ["18", "<answer>19</answer>", "<answer>18</answer>", GOOD.replace("18", "19"), GOOD]
    with Scorer(RewardsRecipe.model_validate({"format": {"mode": "presence"}}), num_workers=1) as scorer:
        verdicts = scorer.score(problem(), [completion(text) for text in texts])
    assert [verdict.reward for verdict in verdicts] == [0, 1, 11, 10, 20]
    assert [verdict.correct for verdict in verdicts] == [False, False, True, False, True]
    assert [verdict.extracted for verdict in verdicts] == [None, "19", "18", "19", "18"]
    assert [verdict.complete_format for verdict in verdicts] == [False, False, False, True, True]


def test_verdict_keeps_the_strict_format_apart_from_the_mode() -> None:
    with Scorer(RewardsRecipe.model_validate({"format": {"mode": "presence"}}), num_workers=1) as scorer:
        (verdict,) = scorer.score(problem(), [completion(GOOD + GOOD)])
    assert (verdict.complete_format, verdict.strict_format, verdict.format_score) == (True, False, 10)


def test_weights_and_plugins_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text(
        "def brevity(problem, completion):\n    return -len(completion.text) / len(problem.question)\n"
        "def three(problem, completion):\n    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = RewardsRecipe.model_validate(
        {
            "format": {"weight": 0.5},
            "accuracy": {"weight": 2.0},
            "plugins": [{"name": "my_rewards:brevity", "weight": 0.1}, {"name": "my_rewards:three", "weight": -1.0}],
        }
    )
    with Scorer(recipe, num_workers=1) as scorer:
        (verdict,) = scorer.score(problem(), [completion(GOOD)])
    brevity = -len(GOOD) / len("9+9?")
    assert verdict.plugins == {"my_rewards:brevity": brevity, "my_rewards:three": 3.0}
    assert verdict.reward == pytest.approx(0.5 * 10 + 2.0 * 10 + 0.1 * brevity - 3.0, rel=1e-12)
    assert (verdict.format_score, verdict.accuracy_score) == (10, 10)


def test_groups_are_graded_in_one_batch_in_order(scorer: Scorer) -> None:
    wrap = "<reasoning></reasoning><answer>{}</answer>".format
    groups = [
        Group(problem(r"\frac{\sqrt{3}}{3}", "a"), (1,), tuple(map(completion, [wrap(r"1/\sqrt{3}"), wrap("1"), "x"]))),
        Group(problem("18", "b"), (2,), (completion(wrap("18")), completion(wrap(r"1/\sqrt{3}")))),
        Group(problem("18", "c"), (3,), ()),
    ]
    scored = scorer.score_groups(groups)
    assert [[verdict.correct for verdict in group.verdicts] for group in scored] == [
        [True, False, False],
        [True, False],
        [],
    ]
    assert [group.problem.id for group in scored] == ["a", "b", "c"]
    assert [group.prompt_ids for group in scored] == [(1,), (2,), (3,)]
    assert groups[0].verdicts == ()


def test_a_plugin_that_cannot_be_loaded_fails_at_once() -> None:
    with pytest.raises(RewardError, match="no_such_module_anywhere"):
        Scorer(RewardsRecipe.model_validate({"plugins": [{"name": "no_such_module_anywhere:f", "weight": 1.0}]}))


@pytest.mark.parametrize(
    ("tokens", "truncated", "penalty"),
    [(0, False, 0.0), (80, False, 0.0), (81, False, -0.05), (90, False, -0.5), (99, False, -0.95), (100, False, -1.0),
     (60, True, -1.0)],
)  # fmt: skip
def test_length_penalty_by_hand(tokens: int, truncated: bool, penalty: float) -> None:
    assert length_penalty(tokens, truncated=truncated, limit=100) == pytest.approx(penalty, abs=1e-12)
    assert length_penalty(tokens + 101, truncated=truncated, limit=100) == -1.0


def test_the_length_penalty_is_a_part_of_the_reward() -> None:
    recipe = RewardsRecipe.model_validate({"length": {"weight": 5.0}})
    text = "<reasoning>r</reasoning><answer>4</answer>"
    short, long = (Completion((1,) * n, (0.0,) * n, "stop", text) for n in (8, 9))
    cut = Completion((1,) * 10, (0.0,) * 10, "length", text)
    with Scorer(recipe, longest=10, num_workers=1) as scorer:
        verdicts = scorer.score(Problem("p", "2+2", "4"), [short, long, cut])
    assert [verdict.reward for verdict in verdicts] == [20.0, 17.5, 15.0]
    assert [verdict.plugins["length"] for verdict in verdicts] == [0.0, -0.5, -1.0]
