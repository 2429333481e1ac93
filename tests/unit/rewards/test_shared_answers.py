"""Gold answers of GSM8K and MATH, where the data lies beside the checkout: each usable one equals itself."""

import json
import random
from pathlib import Path

import pytest
from rewritings import REWRITINGS
from wrong_answers import WRONG, wrong_answers

from gtpo_cli.rewards import EqualityWorkers
from gtpo_cli.rewards.equality import equal_without_algebra

DATA = Path(__file__).parents[3].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the GSM8K and MATH files in ../shared/data")


def answers(name: str) -> list[str]:
    rows = [json.loads(line) for split in ("train", "test") for line in (DATA / name / f"{split}.jsonl").open()]
    return [row["answer"] for row in rows]


@pytest.fixture(scope="module")
def math_golds() -> list[str]:
    """The different usable MATH answers, in random order."""
    golds = sorted({gold for gold in answers("math") if gold and r"\phantom" not in gold})
    random.Random(0).shuffle(golds)
    return golds


def unequal(workers: EqualityWorkers, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    assert pairs
    return [pair for pair, grade in zip(pairs, workers.equal_many(pairs), strict=True) if not grade.equal]


# How many different usable MATH answers each rewriting changes.
REWRITTEN = {
    "dfrac": 1087,
    "tfrac": 1087,
    "no braces": 201,
    "decimal": 178,
    "slash": 606,
    "thousands": 464,
    "no thousands": 76,
    "no unit": 87,
    "no text": 61,
    "no dollar or percent sign": 92,
    "percent sign": 36,
    "math delimiters": 4338,
    "boxed": 4338,
    "no left": 121,
    "no name": 45,
}


def test_every_gsm8k_gold_equals_itself_and_not_its_neighbour() -> None:
    golds = [answer.rpartition("####")[2].strip() for answer in answers("gsm8k")]
    assert len(golds) == 8792
    for gold in golds[::4]:
        assert equal_without_algebra(gold, gold) is True
        assert equal_without_algebra(gold, f"${float(gold.replace(',', '')):,.2f}") is True
        assert equal_without_algebra(gold, gold + "1") is False


@pytest.mark.slow
def test_all_but_three_math_golds_are_usable(workers: EqualityWorkers) -> None:
    golds = answers("math")
    assert len(golds) == 12500
    unusable = [gold for gold, usable in zip(golds, workers.usable_many(golds), strict=True) if not usable]
    # Two rows have an empty \boxed{}; one writes \phantom without its braces.
    assert sorted(unusable) == ["", "", r"\begin{pmatrix} 1 & -1 \\ 1 & \phantom -1 \end{pmatrix}"]


def rewritten(golds: list[str], name: str) -> list[tuple[str, str]]:
    """(gold, rewriting) for the golds that the rewriting changes."""
    pairs = [(gold, REWRITINGS[name](gold)) for gold in golds]
    return [(gold, other) for gold, other in pairs if gold != other]


@pytest.mark.parametrize("name", REWRITINGS)
def test_math_golds_equal_their_rewritings(workers: EqualityWorkers, math_golds: list[str], name: str) -> None:
    assert unequal(workers, rewritten(math_golds, name)[:80]) == []


@pytest.mark.slow
def test_every_usable_math_gold_equals_itself_and_all_its_rewritings(
    workers: EqualityWorkers, math_golds: list[str]
) -> None:
    assert unequal(workers, [(gold, gold) for gold in math_golds]) == []
    pairs = {name: rewritten(math_golds, name) for name in REWRITINGS}
    assert {name: unequal(workers, made) for name, made in pairs.items()} == {name: [] for name in REWRITINGS}
    assert {name: len(made) for name, made in pairs.items()} == REWRITTEN


@pytest.mark.parametrize("every", [pytest.param(8, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
def test_of_36000_wrong_answers_made_from_math_golds_two_at_most_are_accepted(
    workers: EqualityWorkers, math_golds: list[str], every: int
) -> None:
    made = list(wrong_answers(math_golds))
    assert {name for name, _, _ in made} == {*WRONG, "a neighbour's gold"}
    assert len(made) > 36_000
    made = made[::every]
    grades = workers.equal_many([(gold, wrong) for _, gold, wrong in made])
    accepted = [row for row, grade in zip(made, grades, strict=True) if grade.equal]
    assert len(accepted) <= 2, accepted
