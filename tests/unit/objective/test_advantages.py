"""Eq. 12, by hand and against a loop."""

import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import REWARDS, checked

from gtpo_cli.objective import group_advantages

reward = st.sampled_from(REWARDS) | st.floats(-100, 100, width=32)
groups = st.integers(1, 9).flatmap(lambda G: st.lists(st.lists(reward, min_size=G, max_size=G), min_size=1, max_size=4))


def test_three_rewards_by_hand():
    # mean 10, deviations -10 0 10, sample variance (100 + 0 + 100) / 2 = 100, deviation 10
    advantages = group_advantages(torch.tensor([[0.0, 10.0, 20.0]]))
    assert advantages.dtype == torch.float32
    torch.testing.assert_close(advantages, torch.tensor([[-10 / 10.0001, 0.0, 10 / 10.0001]]), rtol=1e-6, atol=0)


def test_the_deviation_has_divisor_g_minus_1_not_g():
    # 0 and 20: mean 10, sample variance (100 + 100) / 1 = 200. With divisor G it would be 100.
    advantages = group_advantages(torch.tensor([[0, 20]]))
    expected = 10 / (math.sqrt(200) + 1e-4)
    torch.testing.assert_close(advantages, torch.tensor([[-expected, expected]]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("value", [0.0, 0.1, 11.0, 1e-20, 3e37])
@pytest.mark.parametrize("G", [1, 2, 3, 7, 49])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero(scale, value, G, dtype):
    # (0.1 + 0.1 + 0.1) / 3 is not 0.1 in float64: the mean alone would put the whole group on one side
    assert group_advantages(torch.full((2, G), value, dtype=dtype), scale=scale).eq(0).all()


def test_large_rewards_keep_their_differences():
    rewards = torch.tensor([[2.0**24 + 1, 2.0**24 + 3, 2.0**24 + 5]], dtype=torch.float64)  # not float32
    assert group_advantages(rewards, scale="none").tolist() == [[-2.0, 0.0, 2.0]]


@checked
@given(groups, st.sampled_from(["std", "none"]))
def test_equals_the_loop(rewards, scale):
    rewards_BG = torch.tensor(rewards, dtype=torch.float64)
    expected = torch.tensor([oracles.advantages(group, scale=scale) for group in rewards], dtype=torch.float64)
    # Deviations from the mean carry the rounding of the rewards themselves, 1e-16 of their size.
    atol = 1e-12 * max(1.0, float(rewards_BG.abs().max())) / (1e-4 if scale == "std" else 1.0)
    torch.testing.assert_close(group_advantages(rewards_BG, scale=scale).double(), expected, rtol=1e-6, atol=atol)


@checked
@given(st.lists(st.sampled_from(REWARDS), min_size=2, max_size=48), st.sampled_from(["std", "none"]))
def test_a_reward_equal_to_the_mean_is_in_neither_camp(rewards, scale):
    advantages = group_advantages(torch.tensor([rewards]), scale=scale)[0].tolist()
    total = sum(rewards)  # integers: exact
    for reward_i, advantage in zip(rewards, advantages, strict=True):
        excess = len(rewards) * reward_i - total
        assert (advantage > 0, advantage < 0) == (excess > 0, excess < 0)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"rewards_BG must have shape \(B, G\), got \(3,\)"):
        group_advantages(torch.zeros(3))
    with pytest.raises(ValueError, match="scale must be 'std' or 'none', got 'mad'"):
        group_advantages(torch.zeros(1, 3), scale="mad")
