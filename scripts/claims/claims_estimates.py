"""Estimates for claims_tests.py: means and slopes with intervals, p-values, and the registered verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from scipy.stats import t as student

from gtpo_cli.estimators import Interval

MARGIN = 0.02  # of test accuracy


def mean(sample: Sequence[float]) -> Interval:
    """Mean with Student's 95 % interval; without width to speak of where there is one value."""
    centre = fmean(sample)
    half = student.ppf(0.975, len(sample) - 1) * np.std(sample, ddof=1) / len(sample) ** 0.5 if len(sample) > 1 else 0.0
    return Interval(centre, centre - float(half), centre + float(half))


def slope(points: Mapping[str, Sequence[tuple[float, float]]]) -> Interval:
    """Least squares of y on x, one slope and an intercept for each group of (x, y): Student's 95 % interval."""
    centred = [(x - fmean(a for a, _ in g), y - fmean(b for _, b in g)) for g in points.values() for x, y in g]
    x, y = np.array(centred).T
    estimate = float(x @ y / (x @ x))
    left = len(x) - len(points) - 1
    error = (np.sum((y - estimate * x) ** 2) / left / (x @ x)) ** 0.5
    half = float(student.ppf(0.975, left) * error)
    return Interval(estimate, estimate - half, estimate + half)


def p_value(found: Interval, left: int) -> float:
    """Of Student's two-sided test that the true value is 0, from its 95 % interval with `left` degrees of freedom.

    1 where the interval has no width: nothing to judge by.
    """
    half = found.high - found.estimate
    return float(2 * student.sf(abs(found.estimate) / half * student.ppf(0.975, left), left)) if half > 0 else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """The same p-values, corrected for their number (Holm 1979): the chance of one false finding is kept for all."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def verdict(found: Interval) -> str:
    """By the registered margin."""
    if found.low > 0 and found.estimate >= MARGIN:
        return "better"
    if found.high < 0 and -found.estimate >= MARGIN:
        return "worse"
    return "no more than the margin" if -MARGIN < found.low and found.high < MARGIN else "open"
