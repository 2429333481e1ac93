"""Eq. 11 put together from its two halves, coefficients and policy_loss, as a trainer puts it together."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gtpo_cli.objective import LossResult, coefficients, policy_loss


def gtpo_loss(
    logprobs_BGT: Tensor,
    *,
    advantages_BG: Tensor,
    mean_entropy_BG: Tensor,
    keep_BG: Tensor,
    weights_BGT: Tensor,
    completion_mask_BGT: Tensor,
    entropy_coef: float = 0.0,
    **options: Any,
) -> LossResult:
    c_BGT = coefficients(
        advantages_BG, mean_entropy_BG, keep_BG, weights_BGT, completion_mask_BGT, entropy_coef=entropy_coef
    )
    return policy_loss(logprobs_BGT, c_BGT, completion_mask_BGT, **options)
