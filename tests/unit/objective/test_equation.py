"""Eq. 11's terms: what multiplies the ratio of every token, as a method sets it."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import Step, checked, per_token, steps
from torch import Tensor

from gtpo_cli.objective import Method, Rewards, RowTerms, group_terms, policy_loss, row_terms


def both(
    method: Method, *, ids: Tensor, mask: Tensor, rewards: Tensor, entropy: Tensor, left_out: Tensor | None
) -> RowTerms:
    """Of whole groups, then of their rows; as groups again, (B, G) and (B, G, T)."""
    groups = group_terms(
        method,
        completion_ids_BGT=ids,
        completion_mask_BGT=mask,
        rewards=Rewards.of_total(rewards.double()),
        left_out_BG=left_out,
    )
    rows = row_terms(
        method,
        advantages_N=groups.advantages_BG.flatten(),
        weights_NT=groups.weights_BGT.flatten(0, 1),
        included_N=groups.included_BG.flatten(),
        completion_mask_NT=mask.bool().flatten(0, 1),
        entropy_NT=entropy.flatten(0, 1),
        initial_entropy=0.3,
    )
    return RowTerms(*(values.unflatten(0, rewards.shape) for values in rows))


def test_one_group_by_hand() -> None:
    """Rewards 20, 0, 11: mean 31/3, deviation 10.0167. Tokens: the first is shared by all, the last by 1 and 2."""
    ids = torch.tensor([[[5, 6, 9], [5, 7, 9], [5, 8, 0]]])
    mask = torch.tensor([[[1, 1, 1], [1, 1, 1], [1, 1, 0]]]).bool()
    entropy = torch.tensor([[[0.2, 0.4, 0.0], [0.9, 0.9, 0.9], [0.5, 0.1, math.nan]]])
    rewards = torch.tensor([[20.0, 0.0, 11.0]])
    found = both(Method(), ids=ids, mask=mask, rewards=rewards, entropy=entropy, left_out=None)
    deviation = math.sqrt(((20 - 31 / 3) ** 2 + (31 / 3) ** 2 + (11 - 31 / 3) ** 2) / 2) + 1e-4
    A = [(r - 31 / 3) / deviation for r in (20, 0, 11)]
    first, third = A[0] - 0.1 * 0.2, A[2] - 0.1 * 0.3
    assert found.filtered_N.tolist() == [[False, True, False]]  # 0.9 > ln 2
    assert found.keep_N.tolist() == [[True, False, True]]
    expected = [[2 * first, first, 2 * first], [0, 0, 0], [2 * third, third, 0]]
    torch.testing.assert_close(found.coefficients_NT, torch.tensor([expected]), rtol=1e-6, atol=1e-7)


@checked
@given(st.data(), steps(), st.booleans(), st.sampled_from(["auto", "always", "never"]), st.floats(0.0, 1.0))
def test_the_gradient_of_the_policy_loss_is_minus_these(
    data: st.DataObject, step: Step, only_negative: bool, enabled: str, gamma: float
) -> None:
    """With them as advantages of tokens, GRPO's loss has the gradient of ours: -c / (B G |o|) for each token."""
    method = Method(filter=enabled, threshold=0.5, only_negative=only_negative, entropy_coef=gamma)  # type: ignore[arg-type]
    entropy_BGT = step.padded(data.draw(per_token(step, st.floats(0.0, 1.0))), value=math.nan).float()
    rewards_BG = torch.tensor(step.rewards)
    c_BGT = both(
        method, ids=step.ids, mask=step.mask, rewards=rewards_BG, entropy=entropy_BGT, left_out=None
    ).coefficients_NT
    logp = torch.zeros(step.mask.shape, requires_grad=True)
    loss, _ = policy_loss(logp, c_BGT, step.mask)
    (gradient,) = torch.autograd.grad(loss, logp)
    B, G, _ = step.shape
    expected = -c_BGT / (B * G * step.mask.sum(dim=-1, keepdim=True).clamp(min=1))
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


def test_what_is_left_out() -> None:
    arguments = {
        "ids": torch.tensor([[[1], [2]], [[3], [4]]]),
        "mask": torch.ones(2, 2, 1),
        "rewards": torch.tensor([[1.0, 1.0], [0.0, 2.0]]),
        "entropy": torch.full((2, 2, 1), 0.5),
    }
    truncated_BG = torch.tensor([[False, True], [False, True]])
    kept = {
        name: both(Method(**settings), **arguments, left_out=left_out)
        for name, settings, left_out in [
            ("all", {}, None),
            ("truncated", {}, truncated_BG),
        ]
    }
    assert {name: found.keep_N.tolist() for name, found in kept.items()} == {
        "all": [[True, True], [True, True]],
        "truncated": [[True, False], [True, False]],
    }
    assert not any(bool(found.filtered_N.any()) for found in kept.values())  # none of it by Eq. 10
