"""Paired comparisons against scipy's binomial test, naive loops and hand-worked cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from gtpo_cli.estimators import mcnemar, sign_flip_test


def test_mcnemar_by_hand() -> None:
    before = [True, True, True, False, False, False, False]
    after = [True, False, True, True, True, True, False]
    # one problem lost, three won: p = 2 (C(4,0) + C(4,1)) / 16
    assert mcnemar(before, after) == (1, 3, 10 / 16)
    assert mcnemar(before, before) == (0, 0, 1.0)
    assert mcnemar([], []) == (0, 0, 1.0)
    assert mcnemar([True, False], [False, True]).p_value == 1.0  # not 1.5


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_mcnemar_is_the_exact_binomial_test_on_discordant_pairs(pairs: list[tuple[bool, bool]]) -> None:
    result = mcnemar([b for b, _ in pairs], [a for _, a in pairs])
    lost, won = pairs.count((True, False)), pairs.count((False, True))
    assert (result.only_before, result.only_after) == (lost, won)
    expected = binomtest(won, lost + won, 0.5).pvalue if lost + won else 1.0
    assert result.p_value == pytest.approx(expected, rel=1e-12)


def test_mcnemar_of_many_problems_does_not_overflow() -> None:
    result = mcnemar([True] * 3000 + [False] * 2900, [False] * 3000 + [True] * 2900)
    assert result.p_value == pytest.approx(binomtest(2900, 5900, 0.5).pvalue, rel=1e-9)


def test_lists_of_different_problems_are_refused() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        mcnemar([True, False], [True])


# -- sign flips -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("differences", "p_value"),
    [
        ([1.0], 1.0),  # both signs are as far from 0
        ([1.0, 2.0, 3.0], 2 / 8),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 2 / 32),
        ([1.0, -1.0], 1.0),
        ([3.0, -1.0], 1.0),  # |2| or |4|: all four patterns are at least 2
        ([5.0, 4.0, -1.0], 4 / 8),  # 8 is reached by +-8 and +-10
        ([0.0, 0.0], 1.0),
        ([1.0, 1.0, 0.0, 0.0], 2 / 4),  # McNemar's exact test of 2 against 0
    ],
)
def test_sign_flips_by_hand(differences: list[float], p_value: float) -> None:
    assert sign_flip_test(differences) == pytest.approx(p_value)


@pytest.mark.parametrize("seed", range(5))
def test_sign_flips_equal_scipys_permutation_test(seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(seed).normal(0.3, 1.0, size=9)
    expected = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", alternative="two-sided", n_resamples=np.inf
    )
    assert sign_flip_test(list(values)) == pytest.approx(expected.pvalue)


def test_many_sign_flips_are_sampled_near_the_exact_value() -> None:
    values = list(np.random.default_rng(3).normal(0.4, 1.0, size=14))
    exact = sign_flip_test(values)
    assert sign_flip_test(values, exact_up_to=5) == pytest.approx(exact, abs=0.005)
    with pytest.raises(ValueError, match="at least one difference"):
        sign_flip_test([])
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite differences"):
            sign_flip_test([bad, 0.1, -0.2])
