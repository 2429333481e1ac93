"""Truncated importance weights: by hand, against a loop, and that they do what they are for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gtpo_cli.objective import importance_weights


def test_by_hand() -> None:
    policy = torch.tensor([math.log(0.5), math.log(0.2), math.log(0.9), 0.0], requires_grad=True)
    sampler = torch.tensor([math.log(0.5), math.log(0.4), math.log(0.1), 0.0])
    weights = importance_weights(policy, sampler)
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.5, 2.0, 1.0]))
    assert not weights.requires_grad
    torch.testing.assert_close(importance_weights(policy, sampler, cap=5.0)[2], torch.tensor(5.0))


@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), min_size=1, max_size=8), st.floats(0.5, 10))
def test_against_a_loop(pairs: list[tuple[float, float]], cap: float) -> None:
    policy, sampler = (torch.tensor(column, dtype=torch.float32) for column in zip(*pairs, strict=True))
    expected = [min(math.exp(float(p) - float(q)), cap) for p, q in zip(policy, sampler, strict=True)]
    assert importance_weights(policy, sampler, cap=cap).tolist() == pytest.approx(expected, rel=1e-5)


def test_means_over_the_samplers_draws_become_the_policys() -> None:
    generator = torch.Generator().manual_seed(0)
    policy, sampler = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.3, 0.3, 0.4])  # no ratio reaches the cap
    value = torch.tensor([1.0, 5.0, -2.0])
    drawn = torch.multinomial(sampler, 200_000, replacement=True, generator=generator)
    weights = importance_weights(policy.log()[drawn], sampler.log()[drawn])
    assert float((weights * value[drawn]).mean()) == pytest.approx(float((policy * value).sum()), abs=0.03)
    assert float(value[drawn].mean()) == pytest.approx(float((sampler * value).sum()), abs=0.03)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        importance_weights(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="cap must be positive"):
        importance_weights(torch.zeros(2), torch.zeros(2), cap=0.0)
