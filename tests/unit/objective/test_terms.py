"""The coefficient of every token, for engines that take advantages of tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import Step, checked, per_token, steps

from gtpo_cli.errors import RecipeError
from gtpo_cli.objective import policy_loss
from gtpo_cli.objective.terms import token_coefficients
from gtpo_cli.recipe.schema import ObjectiveRecipe


def test_one_group_by_hand() -> None:
    """Rewards 20, 0, 11: mean 31/3, deviation 10.0167. Tokens: the first is shared by all, the last by 1 and 2."""
    ids = torch.tensor([[[5, 6, 9], [5, 7, 9], [5, 8, 0]]])
    mask = torch.tensor([[[1, 1, 1], [1, 1, 1], [1, 1, 0]]]).bool()
    entropy = torch.tensor([[[0.2, 0.4, 0.0], [0.9, 0.9, 0.9], [0.5, 0.1, math.nan]]])
    found = token_coefficients(
        ObjectiveRecipe(),
        completion_ids_BGT=ids,
        completion_mask_BGT=mask,
        rewards_BG=torch.tensor([[20.0, 0.0, 11.0]]),
        entropy_BGT=entropy,
        initial_entropy=0.3,
    )
    deviation = math.sqrt(((20 - 31 / 3) ** 2 + (31 / 3) ** 2 + (11 - 31 / 3) ** 2) / 2) + 1e-4
    A = [(r - 31 / 3) / deviation for r in (20, 0, 11)]
    first, third = A[0] - 0.1 * 0.2, A[2] - 0.1 * 0.3
    assert found.keep_BG.tolist() == [[True, False, True]]  # 0.9 > ln 2
    expected = [[2 * first, first, 2 * first], [0, 0, 0], [2 * third, third, 0]]
    torch.testing.assert_close(found.coefficients_BGT, torch.tensor([expected]), rtol=1e-6, atol=1e-7)


@checked
@given(st.data(), steps(), st.booleans(), st.sampled_from(["auto", "always", "never"]), st.floats(0.0, 1.0))
def test_the_gradient_of_the_policy_loss_is_minus_these(
    data: st.DataObject, step: Step, only_negative: bool, enabled: str, gamma: float
) -> None:
    """With them as advantages of tokens, GRPO's loss has the gradient of ours: -c / (B G |o|) for each token."""
    objective = ObjectiveRecipe(
        filter={"enabled": enabled, "threshold": 0.5, "only_negative": only_negative}, entropy_coef=gamma
    )
    entropy_BGT = step.padded(data.draw(per_token(step, st.floats(0.0, 1.0))), value=math.nan).float()
    found = token_coefficients(
        objective,
        completion_ids_BGT=step.ids,
        completion_mask_BGT=step.mask,
        rewards_BG=torch.tensor(step.rewards),
        entropy_BGT=entropy_BGT,
        initial_entropy=0.3,
    )
    logp = torch.zeros(step.mask.shape, requires_grad=True)
    loss, _ = policy_loss(logp, found.coefficients_BGT, step.mask)
    (gradient,) = torch.autograd.grad(loss, logp)
    B, G, _ = step.shape
    expected = -found.coefficients_BGT / (B * G * step.mask.sum(dim=-1, keepdim=True).clamp(min=1))
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


def test_what_is_left_out() -> None:
    arguments = {
        "completion_ids_BGT": torch.tensor([[[1], [2]], [[3], [4]]]),
        "completion_mask_BGT": torch.ones(2, 2, 1),
        "rewards_BG": torch.tensor([[1.0, 1.0], [0.0, 2.0]]),
        "entropy_BGT": torch.full((2, 2, 1), 0.5),
        "initial_entropy": 0.3,
    }
    truncated_BG = torch.tensor([[False, True], [False, True]])
    kept = {
        name: token_coefficients(ObjectiveRecipe(**settings), **arguments, truncated_BG=truncated).keep_BG.tolist()
        for name, settings, truncated in [
            ("all", {}, None),
            ("truncated", {}, truncated_BG),
            ("uninformative", {"skip_uninformative_groups": True}, None),
        ]
    }
    assert kept == {
        "all": [[True, True], [True, True]],
        "truncated": [[True, False], [True, False]],
        "uninformative": [[False, False], [True, True]],
    }
    with pytest.raises(RecipeError, match=r"objective\.compat"):
        token_coefficients(ObjectiveRecipe(compat="released_code"), **arguments)
