"""<H>_i and the filter, Eq. 10."""

import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import checked, per_token, steps

from gtpo_cli.kernels import token_logprobs_and_entropy
from gtpo_cli.objective import LN_2, filter_is_on, keep_mask, mean_entropy

entropies = st.floats(0.0, 3.0, width=32) | st.sampled_from([0.0, LN_2, 0.7, 1.05])


def test_ln_2():
    assert math.log(2) == LN_2


# -- mean -------------------------------------------------------------------------------------------------------------


def test_mean_by_hand():
    entropy = torch.tensor([[[0.5, 1.5, math.nan], [0.25, math.inf, math.nan], [math.nan] * 3]])
    mask = torch.tensor([[[1, 1, 0], [1, 0, 0], [0, 0, 0]]])
    result = mean_entropy(entropy, mask)
    assert result.dtype == torch.float32
    assert result.tolist() == [[1.0, 0.25, 0.0]]  # padding is never read; an empty completion has 0


def test_mean_carries_no_gradient():
    entropy = torch.ones(1, 1, 2, requires_grad=True)
    assert not mean_entropy(entropy, torch.ones(1, 1, 2)).requires_grad


@checked
@given(st.data(), steps())
def test_mean_equals_the_loop(data, step):
    values = data.draw(per_token(step, entropies))
    result = mean_entropy(step.padded(values, value=math.nan), step.mask)
    expected = [[oracles.mean(row) for row in group] for group in values]
    torch.testing.assert_close(result.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-7)


# -- filter -----------------------------------------------------------------------------------------------------------


def kept(mean, *, initial=0.4, **options):
    return keep_mask(torch.tensor([mean]), initial_entropy=initial, **options)[0].tolist()


def test_filter_by_hand():
    assert kept([0.69, 0.70, 5.0]) == [True, False, False]
    assert kept([0.69, 0.70, 5.0], initial=0.71) == [True, True, True]  # the untrained policy is above ln 2: off
    assert kept([0.69, 0.70, 5.0], enabled="never") == [True, True, True]
    assert kept([0.69, 0.70, 5.0], initial=0.71, enabled="always") == [True, False, False]


def test_the_threshold_is_for_completions_not_for_the_untrained_policy():
    # <H>_ini is held against ln 2 whatever theta is: 0.9 is above ln 2 but below theta, 0.4 below ln 2.
    assert kept([3.0], initial=0.9, threshold=2.0) == [True]
    assert kept([3.0, 1.9], initial=0.4, threshold=2.0) == [False, True]
    assert kept([0.65], initial=0.65, threshold=0.6) == [False]


def test_equality_at_either_place_keeps():
    assert kept([LN_2]) == [True]
    assert kept([5.0], initial=LN_2) == [True]
    assert not filter_is_on(LN_2)
    assert filter_is_on(math.nextafter(LN_2, 0))
    assert kept([math.nextafter(0.7, 1)], threshold=0.5) == [False]


def test_a_coin_is_kept():
    # Two equiprobable tokens, through the real entropy in float32: exactly at the threshold, not a rounding above it.
    _, entropy = token_logprobs_and_entropy(torch.zeros(1, 3), torch.zeros(2, 3), torch.tensor([0]))
    mean = mean_entropy(entropy.view(1, 1, 1), torch.ones(1, 1, 1))
    assert keep_mask(mean, initial_entropy=0.1).item() is True


def test_only_negative_spares_all_others():
    advantages = torch.tensor([[-1.0, 0.0, 1.0]])
    assert kept([2.0, 2.0, 2.0], only_negative=True, advantages_BG=advantages) == [False, True, True]


@checked
@given(
    st.lists(entropies, min_size=1, max_size=6),
    st.data(),
    st.floats(0.0, 2.0) | st.just(LN_2),
    st.sampled_from([LN_2, 0.7, 1.05, 2.0]),
    st.sampled_from(["auto", "always", "never"]),
    st.booleans(),
)
def test_equals_the_loop(mean, data, initial, threshold, enabled, only_negative):
    signs = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=len(mean), max_size=len(mean)))
    rule = {"threshold": threshold, "enabled": enabled, "only_negative": only_negative}
    result = keep_mask(
        torch.tensor([mean], dtype=torch.float64), initial_entropy=initial, advantages_BG=torch.tensor([signs]), **rule
    )
    assert result.dtype == torch.bool
    assert result[0].tolist() == [
        oracles.kept(h, sign, initial=initial, **rule) for h, sign in zip(mean, signs, strict=True)
    ]


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="only_negative=True needs advantages_BG"):
        kept([1.0], only_negative=True)
    with pytest.raises(ValueError, match="enabled must be 'auto', 'always' or 'never', got 'on'"):
        kept([1.0], enabled="on")
