"""bootstrap_mean: the estimate exactly, the interval against exact enumeration and against its meaning."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gtpo_cli.estimators import bootstrap_mean


def test_estimate_is_the_mean_over_all_values_not_over_clusters() -> None:
    assert bootstrap_mean([[1.0, 1.0, 1.0], [5.0]]).estimate == 2.0


def test_interval_agrees_with_enumeration_of_all_resamples() -> None:
    clusters = [[0.0, 1.0], [2.0], [4.0, 4.0, 4.0]]
    means = []
    for drawn in itertools.product(range(3), repeat=3):
        values = [value for i in drawn for value in clusters[i]]
        means.append(sum(values) / len(values))
    low, high = np.quantile(means, [0.2, 0.8], method="inverted_cdf")  # 27 atoms; 0.2 and 0.8 fall inside one
    interval = bootstrap_mean(clusters, confidence=0.6, resamples=200_000)
    assert interval.low == pytest.approx(low, abs=1e-12)
    assert interval.high == pytest.approx(high, abs=1e-12)


def test_one_cluster_gives_a_point_and_equal_values_too() -> None:
    assert bootstrap_mean([[1.0, 3.0]]) == (2.0, 2.0, 2.0)
    assert bootstrap_mean([[0.5]] * 9) == (0.5, 0.5, 0.5)


def test_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        sample = rng.normal(1.0, 1.0, size=60)
        interval = bootstrap_mean([[value] for value in sample], resamples=500, seed=trial)
        covered += interval.low <= 1.0 <= interval.high
    assert 0.90 <= covered / 200 <= 0.98  # nominal 0.95; three standard errors are 0.046


@pytest.mark.parametrize("values", [[], [[1.0], []]])
def test_nothing_to_average_is_an_error(values: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_mean(values)


def test_confidence_must_be_a_probability() -> None:
    with pytest.raises(ValueError, match="confidence"):
        bootstrap_mean([[1.0]], confidence=1.0)
