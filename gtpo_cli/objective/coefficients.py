"""The coefficient of each token's ratio in Eq. 11. Every method and every trainer computes it here.

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded).
"""

from __future__ import annotations

import torch
from torch import Tensor


def coefficients(
    advantages_BG: Tensor,
    mean_entropy_BG: Tensor,
    keep_BG: Tensor,
    weights_BGT: Tensor,
    completion_mask_BGT: Tensor,
    *,
    entropy_coef: float,
) -> Tensor:
    """c_{i,t} = delta_i (A_i - gamma <H>_i) lambda_{i,t}             arXiv 2508.03772, Eq. 11

    GRPO has delta 1, gamma 0 and lambda 1, so its c is A. Lambda depends on the sign of A alone, not of A - gamma <H>.

    Args:
        advantages_BG: A_i. mean_entropy_BG: <H>_i >= 0 in nats; ignored if gamma is 0.
        keep_BG: delta_i, bool. weights_BGT: lambda_{i,t} >= 0.
        completion_mask_BGT: bool, True at real tokens.
        entropy_coef: gamma >= 0.
    Returns:
        float32 (B, G, T), detached; exactly 0 at padding and where delta is 0.
    """
    # with gamma 0, an infinite or missing entropy must not matter
    entropy_term_BG = entropy_coef * mean_entropy_BG.detach() if entropy_coef else 0.0
    c_BG = torch.where(keep_BG, advantages_BG.detach() - entropy_term_BG, 0.0)
    return (c_BG[..., None] * weights_BGT).masked_fill(~completion_mask_BGT.bool(), 0.0)
