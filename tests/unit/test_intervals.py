"""Intervals against hand-worked cases and scipy, and by simulation: how often they hold the truth."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import t, ttest_1samp

from gtpo_cli.estimators import Interval, difference_interval, macro_average, mean_interval, student_t

Array = NDArray[np.float64]
OPEN = (-math.inf, math.inf)

# -- by hand ----------------------------------------------------------------------------------------------------------


def test_two_right_and_two_wrong_problems_are_added_to_shares() -> None:
    """1 of 4 right: 3 of 8 with them, t(3) = 3.1824, sqrt((3/8) (5/8) / 7) = 0.18298: 0.375 +- 0.5823, cut at 0."""
    assert mean_interval([1.0, 0.0, 0.0, 0.0], share=True) == (0.25, 0.0, pytest.approx(0.95731, abs=1e-4))
    assert mean_interval([0.0] * 30, share=True) == (0.0, 0.0, pytest.approx(0.14260, abs=1e-4))
    assert mean_interval([1.0] * 30, share=True) == (1.0, pytest.approx(1 - 0.14260, abs=1e-4), 1.0)
    assert mean_interval([0.5], share=True) == (0.5, 0.0, 1.0)  # one problem says nothing of the others


def test_half_a_problem_is_added_to_each_side_of_differences_as_large_as_any_seen() -> None:
    """0, 0, 0.5: with half a problem at 0.5 and half at -0.5, N = 4, m = 1/8, Q = 0.25 + 0.25 - 4/64 = 0.4375."""
    half = 4.30265 * math.sqrt(0.4375 / 12)
    found = difference_interval([0.0, 0.0, 0.25], [0.0, 0.0, 0.75], share=True)
    assert found == (pytest.approx(1 / 6), pytest.approx(0.125 - half, abs=1e-4), pytest.approx(0.125 + half, abs=1e-4))
    none = 2.04523 / math.sqrt(31 * 30)  # nothing differs: the half problems are at -1 and 1
    assert difference_interval([0.5] * 30, [0.5] * 30, share=True) == (
        0.0, pytest.approx(-none, abs=1e-4), pytest.approx(none, abs=1e-4),
    )  # fmt: skip
    assert difference_interval([0.0], [1.0], share=True) == (1.0, -1.0, 1.0)


def test_other_values_have_students_interval_or_none() -> None:
    values = np.random.default_rng(0).normal(300.0, 40.0, size=12)
    expected = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert mean_interval(values) == pytest.approx((values.mean(), *expected), rel=1e-6)
    assert difference_interval(np.zeros(12), values) == mean_interval(values)
    assert mean_interval([7.0]) == (7.0, *OPEN)
    assert mean_interval([7.0] * 5) == (7.0, *OPEN)
    assert difference_interval([1.0, 2.0], [2.0, 3.0]) == (1.0, *OPEN)
    assert not mean_interval([7.0]).is_bounded
    assert mean_interval(values).is_bounded


@pytest.mark.parametrize("degrees", [1, 2, 3, 9, 29, 499, 1318, 10**6])
def test_quantiles_of_students_t_are_scipys(degrees: int) -> None:
    assert student_t(degrees) == pytest.approx(t.ppf(0.975, degrees), abs=1e-4)


def test_a_macro_average_joins_the_parts_intervals() -> None:
    """Distances 0.3 and 0.4 below, 0.6 and 0.8 above: sqrt(0.25) / 2 and sqrt(1) / 2."""
    parts = [Interval(0.4, 0.1, 1.0), Interval(0.8, 0.4, 1.6)]
    assert macro_average(parts) == (pytest.approx(0.6), pytest.approx(0.35), pytest.approx(1.1))
    assert macro_average(parts[:1]) == pytest.approx(parts[0])
    assert macro_average([*parts, Interval(1.0, *OPEN)])[1:] == OPEN


def test_an_interval_of_a_macro_average_holds_the_truth() -> None:
    rng, truths, held = np.random.default_rng(0), np.array([0.2, 0.5, 0.9]), 0
    for _ in range(1000):
        parts = [mean_interval(rng.random(n) < p, share=True) for n, p in zip((40, 100, 200), truths, strict=True)]
        _, low, high = macro_average(parts)
        held += low <= truths.mean() <= high
    assert 0.93 <= held / 1000 <= 0.98


def test_nothing_to_average_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one part"):
        macro_average([])
    with pytest.raises(ValueError, match="a list of values"):
        mean_interval([])
    with pytest.raises(ValueError, match="a list of values"):
        difference_interval([], [], share=True)
    with pytest.raises(ValueError, match="the same shape"):
        difference_interval([1.0], [1.0, 0.0])


# -- by simulation ----------------------------------------------------------------------------------------------------


def mostly(value: float, share: float, others: Callable[[np.random.Generator, int], Array]) -> Callable[..., Array]:
    """A benchmark: this share of its problems is solved with this probability, the others with drawn ones."""

    def draw(rng: np.random.Generator, size: int) -> Array:
        return np.where(rng.random(size) < share, value, others(rng, size))

    return draw


BENCHMARKS = {  # size -> each problem's probability of a right answer
    "AIME, a weak model": mostly(0.0, 0.7, lambda rng, size: rng.beta(0.5, 1.5, size)),
    "AIME, a strong model": mostly(0.0, 0.4, mostly(1.0, 0.25, lambda rng, size: rng.random(size))),
    "GSM8K, trained": mostly(1.0, 0.8, mostly(0.0, 0.25, lambda rng, size: rng.beta(5, 1, size))),
    "nearly all wrong": mostly(0.0, 0.95, lambda rng, size: rng.random(size)),
    "nearly all right": mostly(1.0, 0.95, lambda rng, size: rng.random(size)),
    "spread": lambda rng, size: rng.beta(0.3, 0.6, size),
}
DRAWS = 600
CHANCE = 3 * math.sqrt(0.05 * 0.95 / DRAWS)  # three standard errors of a share of 0.95 or 0.05: 0.027


@pytest.mark.parametrize("samples", [1, 64])
@pytest.mark.parametrize("problems", [10, 30, 40, 500, 1319])
def test_intervals_of_shares_hold_the_truth_at_every_size(problems: int, samples: int) -> None:
    """With 4,000 draws it is 0.94 to 1. The percentile bootstrap has 0.21 to 0.95 at 10 to 40 problems."""
    rng = np.random.default_rng(problems + samples)
    for name, benchmark in BENCHMARKS.items():
        truth = float(benchmark(np.random.default_rng(0), 2_000_000).mean())
        p_DP = benchmark(rng, DRAWS * problems).reshape(DRAWS, problems)
        found = [mean_interval(row, share=True) for row in rng.binomial(samples, p_DP) / samples]
        held = np.mean([interval.low <= truth <= interval.high for interval in found])
        assert held >= 0.95 - CHANCE, (name, held)
        assert all(interval.low <= interval.estimate <= interval.high for interval in found), name
        assert all(interval.high - interval.low > 0.0 for interval in found), name


def excludes_zero(interval: Interval) -> bool:
    return interval.low > 1e-12 or interval.high < -1e-12
