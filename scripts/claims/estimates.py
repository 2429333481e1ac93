"""Means with intervals, corrected p-values, and the registered verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from gtpo_cli.estimators import Interval

MARGIN = 0.02  # of an accuracy, a pass@k or a maj@k


def mean(sample: Sequence[float]) -> Interval:
    """Mean with Student's 95 % interval; without width to speak of where there is one value."""
    centre = fmean(sample)
    half = student.ppf(0.975, len(sample) - 1) * np.std(sample, ddof=1) / len(sample) ** 0.5 if len(sample) > 1 else 0.0
    return Interval(centre, centre - float(half), centre + float(half))


def p_value(sample: Sequence[float]) -> float:
    """Of Student's two-sided test that the mean is 0; 1 where all values are equal, so that nothing is to judge by."""
    return float(ttest_1samp(sample, 0.0).pvalue) if np.ptp(sample) > 0 else 1.0


def verdict(found: Interval) -> str:
    """As registered: an interval within the margin of 0 on both sides says more than that it misses 0."""
    if -MARGIN < found.low and found.high < MARGIN:
        return "no more than the margin"
    return "better" if found.low > 0 else "worse" if found.high < 0 else "open"


def share(found: Interval) -> str:
    """In percent, with the half width of the interval."""
    return f"{100 * found.estimate:.1f} ± {100 * (found.high - found.estimate):.1f}"


def points(found: Interval) -> str:
    """A difference in percentage points, with its interval."""
    return f"{100 * found.estimate:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
