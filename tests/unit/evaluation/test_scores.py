"""Scores of graded completions, by hand; grading of real texts; the records' round trip."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from decimal import Decimal

import pytest

from gtpo_cli.evaluation.measure import grade, score_problems
from gtpo_cli.evaluation.store import (
    EvaluatedCompletion,
    EvaluatedProblem,
    Results,
    columns_digest,
    data_digest,
    problem_digest,
)
from gtpo_cli.recipe.schema import EvaluationRecipe, RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.files import parse_json
from gtpo_cli.tasks.making import task_problems
from gtpo_cli.types import Completion, Group, Problem


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    with Scorer(RewardsRecipe()) as scorer:
        yield scorer


def graded(answer: str | None, *, correct: bool = False, **fields: object) -> EvaluatedCompletion:
    values: dict[str, object] = {
        "text": "", "tokens": 10, "finish_reason": "stop", "mean_entropy": 0.25, "answer": answer, "correct": correct,
        "parsable": answer is not None, "strict_format": answer is not None, "complete_format": answer is not None,
    }  # fmt: skip
    return EvaluatedCompletion(**(values | fields))  # type: ignore[arg-type]


FIRST = EvaluatedProblem(
    "a/1", "2+3", "5",
    (graded("6", tokens=20), graded("5", correct=True), graded("5.0", correct=True), graded("6.0", mean_entropy=0.65)),
)  # fmt: skip
SECOND = EvaluatedProblem(
    "a/2", "1+1", "2",
    (graded("7"), graded("8"), graded(None, finish_reason="length", tokens=50, strict_format=True), graded("7")),
)  # fmt: skip
SETTINGS = EvaluationRecipe(samples=4, pass_k=(1, 2, 4), majority_k=(1, 4))


def test_scores_by_hand(scorer: Scorer) -> None:
    results = score_problems([FIRST, SECOND], SETTINGS, scorer, dropped=3)
    values = {name: score.values for name, score in results.scores.items()}
    assert values["accuracy"] == (0.5, 0.0)
    assert values["pass@1"] == (0.5, 0.0)
    assert values["pass@2"] == (pytest.approx(5 / 6), 0.0)  # one of six pairs holds two wrong answers
    assert values["pass@4"] == (1.0, 0.0)
    assert values["first_pass@1"] == (0.0, 0.0)
    assert values["first_pass@2"] == (1.0, 0.0)
    assert values["maj@4"] == (0.5, 0.0)  # 5 and 5.0 against 6 and 6.0: a tie; then 7 wins
    assert values["maj@1"] == (0.5, 0.0)
    assert values["strict_format_rate"] == (1.0, 1.0)
    assert values["format_rate"] == (1.0, 0.75)
    assert values["truncated_share"] == (0.0, 0.25)
    assert values["unparsable_share"] == (0.0, 0.25)
    assert values["mean_entropy"] == (pytest.approx(0.35), 0.25)
    assert values["mean_length"] == (12.5, 20.0)
    assert {name: score.interval.estimate for name, score in results.scores.items()} == {
        name: pytest.approx(sum(column) / 2) for name, column in values.items()
    }
    assert results.scores["accuracy"].interval == (0.25, 0.0, 1.0)  # two problems say little
    assert results.problem_ids == ("a/1", "a/2")
    assert results.dropped == 3
    assert results.ks("pass") == [1, 2, 4]
    assert results.ks("maj") == [1, 4]


def test_a_reward_that_not_every_completion_has_is_left_out(scorer: Scorer) -> None:
    """As after a kill and a change of rewards.length.weight."""
    some = graded("5", correct=True, plugins={"a:b": 2.0, "length": -1.0})
    all_ = graded("5", correct=True, plugins={"a:b": 4.0})
    problems = [EvaluatedProblem(f"a/{n}", "2+3", "5", row) for n, row in enumerate([(some, all_), (all_, all_)])]
    results = score_problems(problems, EvaluationRecipe(samples=2, pass_k=(1,), majority_k=()), scorer)
    assert results.scores["a:b"].values == (3.0, 4.0)
    assert "length" not in results.scores


def test_a_task_s_scores_stand_beside_right_and_wrong(scorer: Scorer) -> None:
    row = (
        graded("4", score=0.5),
        graded(None, score=0.0),
        graded("5", correct=True, score=1.0),
        graded("3", score=0.5),
    )
    task, table = EvaluatedProblem("t/1", "2+3", "", row, "t"), replace(FIRST, part="table")
    results = score_problems([task, table], SETTINGS, scorer)
    values = {name: score.values for name, score in results.scores.items()}
    assert values["accuracy"] == (0.25, 0.5)
    assert values["pass@2"] == (0.5, pytest.approx(5 / 6))
    assert values["score"] == (0.5, 0.5)  # where answers are compared: 1 or 0
    assert values["best@2"] == (pytest.approx((3 * 1.0 + 3 * 0.5) / 6), pytest.approx(5 / 6))
    assert values["best@4"] == (1.0, 1.0)
    assert "best@1" not in values
    assert results.headlines == ["accuracy", "pass@4", "score"]
    assert results.parts == {"t": ["t/1"], "table": ["a/1"]}
    assert results.part(["t/1"]).scores["score"].values == (0.5,)
    assert results.part(["t/1"]).parts == {}
    assert not {"score", "best@2"} & score_problems([FIRST], SETTINGS, scorer).scores.keys()


def test_results_and_problems_survive_the_disk(scorer: Scorer) -> None:
    results = score_problems([FIRST, SECOND], SETTINGS, scorer)
    assert parse_json(json.dumps(asdict(results)), Results) == results
    assert parse_json(json.dumps(asdict(FIRST)), EvaluatedProblem) == FIRST


def test_digests_see_every_part_of_a_problem_and_their_order() -> None:
    one, other = Problem("a/1", "2+3", "5"), Problem("a/2", "1+1", "2")
    assert problem_digest("2+3", "5") != problem_digest("2+3", "6")
    assert problem_digest("2+3", "5") != problem_digest("2+35", "")
    assert data_digest([one, other]) != data_digest([other, one])
    assert data_digest([one]) != data_digest([Problem("a/3", "2+3", "5")])
    assert data_digest([one]) != data_digest([replace(one, turns=(("system", "Be brief."), ("user", "2+3")))])
    told = replace(one, columns={"level": 1, "tests": [{"a": 1.5}], "image": object(), "price": Decimal("1.5")})
    assert data_digest([told]) == data_digest([one])
    for name, value, same in (("image", object(), True), ("level", 2, False), ("price", Decimal("1.6"), False)):
        other = replace(told, columns={**told.columns, name: value})
        assert (columns_digest([told]) == columns_digest([other])) is same


def completion(text: str, *, reason: str = "stop") -> Completion:
    return Completion((1,) * len(text), (0.0,) * len(text), reason, text)  # type: ignore[arg-type]


def test_any_answer_to_a_task_that_scores_is_one() -> None:
    """Its right answers may be no mathematics, such as the lists of group_anagrams."""
    (problem,) = task_problems("reasoning_gym/group_anagrams", {}, "test", 0, 1)
    texts = [f"<reasoning></reasoning><answer>{answer}</answer>" for answer in (problem.gold, "[[", "")]
    group = Group(problem, (), (*map(completion, texts), completion("none")))
    with Scorer(RewardsRecipe()) as scorer:
        (graded,) = grade([group], [[0.0] * 4], scorer)
    assert [one.correct for one in graded.completions] == [True, False, False, False]
    assert [one.parsable for one in graded.completions] == [True, True, True, False]


def test_the_format_mode_is_the_recipes() -> None:
    group = Group(Problem("m/1", "q", "5"), (), (completion("<answer>5</answer>"),))
    presence = RewardsRecipe.model_validate({"format": {"mode": "presence"}})
    with Scorer(presence) as scorer:
        (problem,) = grade([group], [[0.0]], scorer)
    assert problem.completions[0].correct
    assert not problem.completions[0].complete_format
