"""Estimators with their intervals: pure numpy, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """A percentile bootstrap interval [low, high] around the estimate."""

    estimate: float
    low: float
    high: float


def bootstrap_mean(
    values: Sequence[Sequence[float]], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Mean over all values with a percentile bootstrap interval that resamples *clusters* (one inner list each).

    Completions of one prompt are not independent, so prompts are drawn with replacement and bring all their values
    (Efron & Tibshirani 1993, chapter 13; cluster bootstrap). With one cluster the interval is the point.

    Args:
        values: one non-empty list of values for each cluster, at least one cluster.
        confidence: in (0, 1).
    Raises:
        ValueError: no cluster, an empty cluster, or a confidence outside (0, 1).
    """
    if not values or any(len(cluster) == 0 for cluster in values):
        raise ValueError("bootstrap_mean needs at least one cluster, each with at least one value")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    sums = np.array([float(np.sum(cluster)) for cluster in values])
    counts = np.array([len(cluster) for cluster in values])
    drawn = np.random.default_rng(seed).integers(0, len(values), size=(resamples, len(values)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))
