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
from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.tools.report.comparison import compare, compare_pair, find_side


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


def test_a_mixture_is_compared_by_part_and_each_part_counts_the_same(scorer: Scorer, tmp_path: Path) -> None:
    def part(number: int) -> str:
        return "even" if number in (2, 4) else "odd"

    one, other = (
        store(run_at(tmp_path / name), scorer, right, part=part) for name, right in (("a", BEFORE), ("b", AFTER))
    )
    found = compare_pair(one, other).parts
    assert list(found) == ["odd", "even", "mean of these"]
    accuracy = {name: rows[0] for name, rows in found.items()}
    assert {row.score for row in accuracy.values()} == {"accuracy"}
    assert accuracy["even"].before == pytest.approx(fmean([0, 1]))
    assert accuracy["even"].after == pytest.approx(fmean([2 / 3, 2 / 3]))
    assert accuracy["odd"].after == pytest.approx(fmean([1, 1 / 3, 1 / 3, 1 / 3]))
    assert accuracy["mean of these"].after == pytest.approx((2 / 3 + 1 / 2) / 2)
    differences = [accuracy[name].interval.estimate for name in ("odd", "even")]
    assert accuracy["mean of these"].interval.estimate == pytest.approx(fmean(differences))
    assert [row.score for row in found["odd"]] == ["accuracy", "pass@3"]
    assert compare_pair(store(run_at(tmp_path / "c"), scorer, BEFORE), other).parts == {}


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


def test_evaluations_of_the_same_problems_are_paired_whichever_was_made_last(scorer: Scorer, tmp_path: Path) -> None:
    """Two levels of a task have the same ids; one run was asked the easy one last, the other the hard one."""
    a, b = run_at(tmp_path / "a"), run_at(tmp_path / "b")
    store(a, scorer, AFTER, gold="7", settings={"data.config": "hard"})
    easy = store(a, scorer, BEFORE)
    easy_too = store(b, scorer, AFTER)
    store(b, scorer, BEFORE, gold="7", settings={"data.config": "hard"})
    (found,) = compare(find_side(str(a.path)), find_side(str(b.path)))
    assert found.before.conditions.settings == found.after.conditions.settings
    (named,) = compare(find_side(str(easy.path)), find_side(str(easy_too.path)))
    assert (named.before.path, named.after.path, named.notes) == (easy.path, easy_too.path, ())
    (note,) = found.notes
    assert note == (
        f"compared are {found.before.path} and {found.after.path} of 2 and 2 evaluations; name the folders to compare "
        "others"
    )


def test_evaluations_under_the_same_conditions_are_paired(scorer: Scorer, tmp_path: Path) -> None:
    a, b = run_at(tmp_path / "a"), run_at(tmp_path / "b")
    warm = store(a, scorer, BEFORE)
    store(a, scorer, BEFORE, temperature=0.0)
    warm_too = store(b, scorer, AFTER)
    (found,) = compare(find_side(str(a.path)), find_side(str(b.path)))
    assert (found.before.path, found.after.path) == (warm.path, warm_too.path)


def test_the_test_split_is_compared_even_if_more_training_problems_were_asked(scorer: Scorer, tmp_path: Path) -> None:
    a, b = run_at(tmp_path / "a"), run_at(tmp_path / "b")
    for run in (a, b):
        store(run, scorer, BEFORE[:2])
        store(run, scorer, BEFORE, split="train")
    (found,) = compare(find_side(str(a.path)), find_side(str(b.path)))
    assert {found.before.conditions.split, found.after.conditions.split} == {"test"}


def test_a_reward_of_other_code_is_another_condition(scorer: Scorer, tmp_path: Path) -> None:
    first, second = (
        store(run_at(tmp_path / name), scorer, BEFORE, settings={"rewards.plugins.my:f": digest, **more})
        for name, digest, more in (("a", "aaaa", {}), ("b", "bbbb", {"rewards.plugins.my:g": "cccc"}))
    )
    assert first.conditions.differences(second.conditions) == [("rewards.plugins.my:f", "aaaa", "bbbb")]


def test_a_folder_that_is_no_finished_evaluation_is_an_error(tmp_path: Path) -> None:
    run = run_at(tmp_path / "a")
    with pytest.raises(EvaluationError, match=r"step-1-n8-x: is not a finished evaluation of .*a$"):
        find_side(str(run.path / "evaluation/arithmetic/step-1-n8-x"))
