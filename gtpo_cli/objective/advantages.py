"""Group-relative advantages (Eq. 12), also with the leave-one-out baseline.

Axes: B prompts, G completions of one prompt.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

AdvantageScale = Literal["std", "none"]
Baseline = Literal["mean", "leave_one_out"]


def group_advantages(
    rewards_BG: Tensor, *, scale: AdvantageScale = "std", baseline: Baseline = "mean", eps: float = 1e-4
) -> Tensor:
    """Compute the advantage of each completion within its group.

        A_i = (R_i - mean(R)) / (std(R) + eps)          arXiv 2508.03772, Eq. 12

    `std` is the sample standard deviation (divisor G-1). `scale="none"` skips the division (the authors' released
    code; also "Dr. GRPO", arXiv 2503.20783). `baseline="leave_one_out"` subtracts the mean of the *other* rewards
    (RLOO, arXiv 2402.14740), which is R_i - mean(R) times G / (G - 1). If all rewards of a group are equal, every A_i
    is exactly 0. So is that of a reward that equals the mean up to rounding, since the sign of A decides conflicts.

    Args:
        rewards_BG: rewards, any real dtype, shape (B, G); a group of one gets A = 0.
        eps: added to the deviation; same unit as the rewards.
    Returns:
        (B, G), float64 for float64 rewards and float32 for others. Mean 0 in each group up to rounding.
    Raises:
        ValueError: `rewards_BG` is not two-dimensional, or `scale` or `baseline` is unknown.
    """
    if rewards_BG.ndim != 2:
        raise ValueError(f"rewards_BG must have shape (B, G), got {tuple(rewards_BG.shape)}")
    if scale not in ("std", "none"):
        raise ValueError(f"scale must be 'std' or 'none', got {scale!r}")
    if baseline not in ("mean", "leave_one_out"):
        raise ValueError(f"baseline must be 'mean' or 'leave_one_out', got {baseline!r}")
    rewards = rewards_BG.double()
    G = rewards.shape[1]
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    # A reward equal to the mean must count as neither right nor wrong, so its rounding error is removed.
    kind = rewards_BG.dtype if rewards_BG.is_floating_point() else torch.float64
    rounding = torch.finfo(kind).eps * rewards.abs().amax(dim=1, keepdim=True)
    centred = centred.masked_fill(centred.abs() <= rounding, 0.0)
    if baseline == "leave_one_out" and G > 1:
        centred = centred * (G / (G - 1))
    if scale == "std" and G > 1:
        centred = centred / (rewards.std(dim=1, keepdim=True) + eps)
    return centred if rewards_BG.dtype == torch.float64 else centred.to(torch.float32)
