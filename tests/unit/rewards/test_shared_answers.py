"""Gold answers of GSM8K and MATH, where the data lies beside the checkout: each usable one equals itself."""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gtpo_cli.rewards import EqualityWorkers
from gtpo_cli.rewards.workers import equal_without_algebra

DATA = Path(__file__).parents[3].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the GSM8K and MATH files in ../shared/data")


def answers(name: str) -> list[str]:
    rows = [json.loads(line) for split in ("train", "test") for line in (DATA / name / f"{split}.jsonl").open()]
    return [row["answer"] for row in rows]


@pytest.fixture(scope="module")
def workers() -> Iterator[EqualityWorkers]:
    with EqualityWorkers(timeout_seconds=20.0) as workers:
        yield workers


@pytest.fixture(scope="module")
def math_golds() -> list[str]:
    """The different usable MATH answers, in random order."""
    golds = sorted({gold for gold in answers("math") if gold and r"\phantom" not in gold})
    random.Random(0).shuffle(golds)
    return golds


def unequal(workers: EqualityWorkers, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    assert pairs
    return [pair for pair, grade in zip(pairs, workers.equal_many(pairs), strict=True) if not grade.equal]


def commas(digits: re.Match[str]) -> str:
    return f"{int(digits[0]):,}"


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


def test_math_golds_equal_themselves(workers: EqualityWorkers, math_golds: list[str]) -> None:
    assert unequal(workers, [(gold, gold) for gold in math_golds[:300]]) == []


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda gold: gold.replace(r"\frac", r"\dfrac"),
        lambda gold: f"${gold}$",
        lambda gold: rf"\boxed{{{gold}}}",
        lambda gold: re.sub(r"\\(?:left|right)(?![A-Za-z])", "", gold),
        lambda gold: re.sub(r"^[a-z] ?= ?", "", gold),
        lambda gold: re.sub(r"(?<=[0-9}])\\text\{ [a-z ]+\}$", "", gold),
        # Not in coordinates: (3,281,3280) is a triple.
        lambda gold: re.sub(r"(?<![0-9_^.{,])[0-9]{4,9}(?![0-9.])", commas, gold) if "," not in gold else gold,
        lambda gold: re.sub(r"\\[$%]", "", gold) if "=" not in gold and r"\approx" not in gold else gold,
    ],
    ids=["dfrac", "dollars", "boxed", "no left", "no name", "no unit", "thousands", "no dollar or percent sign"],
)
def test_math_golds_equal_their_rewritings(
    workers: EqualityWorkers, math_golds: list[str], rewrite: Callable[[str], str]
) -> None:
    pairs = [(gold, rewrite(gold)) for gold in math_golds]
    assert unequal(workers, [(gold, other) for gold, other in pairs if gold != other][:200]) == []


def test_math_golds_do_not_equal_the_next_one(workers: EqualityWorkers, math_golds: list[str]) -> None:
    pairs = list(itertools.pairwise(math_golds[:150]))
    assert unequal(workers, pairs) == pairs
