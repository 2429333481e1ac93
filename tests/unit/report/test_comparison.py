"""Comparisons of stored evaluations: values against naive computation, refusals, which evaluations are taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from scipy.stats import binomtest
from stored_runs import run_at, store

from gtpo_cli.errors import EvaluationError
from gtpo_cli.estimators import Interval
from gtpo_cli.recipe import build_recipe
from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.recipe.section import recipe_differences
from gtpo_cli.report.comparison import Difference, compare, compare_pair, find_side
from gtpo_cli.rewards import Scorer


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    with Scorer(RewardsRecipe()) as scorer:
        yield scorer


BEFORE = ["100", "000", "011", "111", "000", "010"]
AFTER = ["111", "110", "100", "011", "001", "010"]


def test_scores_differences_and_test_against_naive_computation(scorer: Scorer, tmp_path: Path) -> None:
    one = store(run_at(tmp_path / "a"), scorer, BEFORE)
    other = store(run_at(tmp_path / "b"), scorer, AFTER)
    found = compare_pair(one, other)
    assert (found.shared, found.left_out, found.notes) == (6, 0, ())
    by_score = {row.score: row for row in found.differences}
    shares = [[marks.count("1") / 3 for marks in side] for side in (BEFORE, AFTER)]
    accuracy = by_score["accuracy"]
    assert (accuracy.before, accuracy.after) == (pytest.approx(fmean(shares[0])), pytest.approx(fmean(shares[1])))
    assert accuracy.interval.estimate == pytest.approx(fmean(shares[1]) - fmean(shares[0]))
    assert accuracy.interval.low <= accuracy.interval.estimate <= accuracy.interval.high
    assert by_score["pass@3"].interval.estimate == pytest.approx((6 - 4) / 6)
    assert not by_score["mean_length"].excludes_zero
    # first completions: 1..1.. of before, 111... of after
    assert found.only_before == ("arithmetic/test/4",)
    assert found.only_after == ("arithmetic/test/2", "arithmetic/test/3")
    assert found.never_after == ()
    assert found.never_before == ("arithmetic/test/2", "arithmetic/test/5")
    assert found.test == (1, 2, pytest.approx(binomtest(1, 3, 0.5).pvalue))


def test_only_shared_problems_are_compared(scorer: Scorer, tmp_path: Path) -> None:
    one = store(run_at(tmp_path / "a"), scorer, BEFORE)
    other = store(run_at(tmp_path / "b"), scorer, AFTER[2:], first_problem=3)
    found = compare_pair(one, other)
    assert (found.shared, found.left_out) == (4, 2)
    accuracy = found.differences[0]
    assert accuracy.before == pytest.approx(fmean([2 / 3, 1, 0, 1 / 3]))
    assert accuracy.after == pytest.approx(fmean([1 / 3, 2 / 3, 1 / 3, 1 / 3]))
    with pytest.raises(EvaluationError, match="no problem in common"):
        compare_pair(one, store(run_at(tmp_path / "c"), scorer, AFTER, first_problem=7))


def test_different_data_is_refused_and_the_rows_are_named(scorer: Scorer, tmp_path: Path) -> None:
    one = store(run_at(tmp_path / "a"), scorer, ["100"] * 12)
    other = store(run_at(tmp_path / "b"), scorer, ["100"] * 12, gold="6")
    with pytest.raises(
        EvaluationError, match=r"12 of 12 shared .* arithmetic/test/1, .*test/10 and 2 more.*--data-path"
    ):
        compare_pair(one, other)


def test_conditions_that_differ_are_said(scorer: Scorer, tmp_path: Path) -> None:
    one = store(run_at(tmp_path / "a"), scorer, BEFORE)
    other = store(run_at(tmp_path / "b"), scorer, AFTER, temperature=0.6, seed=2)
    assert compare_pair(one, other).notes == ("temperature differs: 1.0 and 0.6", "seed differs: 1 and 2")


def test_of_a_run_its_newest_checkpoint_is_taken_and_the_evaluation_that_shares_most(
    scorer: Scorer, tmp_path: Path
) -> None:
    a, b = run_at(tmp_path / "a"), run_at(tmp_path / "b")
    store(a, scorer, BEFORE, subject="base")
    whole = store(a, scorer, BEFORE, subject="step-000010")
    store(a, scorer, BEFORE[:2], subject="step-000010")
    store(a, scorer, BEFORE, subject="base", seed=5)
    other = store(b, scorer, AFTER)
    side = find_side(str(tmp_path / "a"))
    (found,) = compare(side, find_side(str(tmp_path / "b")))
    assert (found.before.path, found.after.path) == (whole.path, other.path)
    store(a, scorer, BEFORE, subject="step-000005")  # evaluated later, and an older checkpoint
    assert compare(side, find_side(str(tmp_path / "b")))[0].before.path == whole.path
    (base,) = compare(find_side(f"{tmp_path / 'a'}@base"), side)
    assert (base.before.conditions.subject, base.after.conditions.subject) == ("base", "step-000010")
    with pytest.raises(EvaluationError, match="not both evaluated on math"):
        compare(side, find_side(str(tmp_path / "b")), benchmark="math")


def test_sides_that_are_not_there(scorer: Scorer, tmp_path: Path) -> None:
    run = run_at(tmp_path / "a")
    with pytest.raises(EvaluationError, match="has no finished evaluation; make one: gtpo eval"):
        find_side(str(run.path))
    store(run, scorer, BEFORE)
    with pytest.raises(EvaluationError, match="base was not evaluated; choose from step-000010"):
        find_side(f"{run.path}@base")
    with pytest.raises(EvaluationError, match="is not a run folder"):
        find_side(str(tmp_path / "nowhere"))
    (found,) = find_side(str(run.path)).evaluations["arithmetic"]
    assert found.conditions.subject == "step-000010"


def test_a_missing_first_pass_is_read_from_the_samples(scorer: Scorer, tmp_path: Path) -> None:
    one = store(run_at(tmp_path / "a"), scorer, BEFORE)
    other = store(run_at(tmp_path / "b"), scorer, AFTER)
    expected = compare_pair(one, other)
    results = one.results()
    one.finish(replace(results, scores={"accuracy": results.scores["accuracy"]}))
    found = compare_pair(one, other)
    assert (found.test, found.only_after) == (expected.test, expected.only_after)
    assert found.never_before == expected.never_before
    assert [row.score for row in found.differences] == ["accuracy"]


def test_recipes_differ_by_dotted_key_without_the_run_s_own_name() -> None:
    base = {"model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"}}
    gtpo = build_recipe(base | {"run_name": "a"}, where="t")
    grpo = build_recipe(base | {"run_name": "b", "objective": {"name": "grpo"}, "seed": 7}, where="t")
    differ = dict(recipe_differences([gtpo, grpo, gtpo]))
    assert differ["seed"] == [3407, 7, 3407]
    assert differ["objective.name"] == ["gtpo", "grpo", "gtpo"]
    assert differ["objective.conflict.enabled"] == [True, False, True]
    assert "run_name" not in differ
    assert recipe_differences([gtpo, gtpo]) == []


def test_an_interval_that_misses_zero_by_rounding_does_not_exclude_it() -> None:
    def row(low: float, high: float) -> Difference:
        return Difference("accuracy", 0.5, 0.5, Interval(0.0, low, high))

    assert not row(-0.24, -4.4e-17).excludes_zero  # resampled differences of thirds and ninths that cancel
    assert not row(2.2e-17, 0.2).excludes_zero
    assert row(1e-6, 0.2).excludes_zero
    assert row(-0.2, -1e-6).excludes_zero
