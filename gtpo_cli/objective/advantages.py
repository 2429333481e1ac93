"""Rules for A, the advantage of each completion within its group.

A rule is a pure function of `Rewards` that returns A. A recipe names it in `objective.advantages.rule`: one of RULES,
or a function of the user's own. Axes: R rewards, B prompts, G completions of one prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

AdvantageScale = Literal["std", "none"]
Baseline = Literal["mean", "leave_one_out"]
NotNegative = Annotated[float, Field(ge=0)]
EPS = 1e-4  # added to standard deviations; same unit as the rewards


@dataclass(frozen=True, slots=True, eq=False)
class Rewards:
    """What a rule may read of a step's completions. All float64 but `right_BG`.

    TRL's trainer knows the total alone.
    """

    total_BG: Tensor  # the weighted sum
    right_BG: Tensor  # bool: the answer is right
    scores_RBG: Tensor  # each reward before its weight
    weights_R: Tensor
    names: tuple[str, ...]  # of the rewards

    @classmethod
    def of_total(cls, total_BG: Tensor) -> Rewards:
        """Return what is known where a completion has one reward."""
        return cls(total_BG, total_BG > 0, total_BG[None], torch.ones_like(total_BG[:1, 0]), ("reward",))


AdvantageRule = Callable[..., Tensor]  # (Rewards, **config) -> A, (B, G)


def group(rewards: Rewards, *, scale: AdvantageScale = "std", baseline: Baseline = "mean") -> Tensor:
    """Compare each completion with its group (arXiv 2508.03772, Eq. 12): `group_advantages` of the total reward."""
    return group_advantages(rewards.total_BG, scale=scale, baseline=baseline)


def quantile(rewards: Rewards, *, k: Annotated[float, Field(gt=0, le=1)] = 0.4) -> Tensor:
    """Compare each completion with a quantile of its group (QAE, arXiv 2509.22611).

        A_i = (R_i - Q_k(R)) / (std(R) + 1e-4),   Q_k the smallest reward that a share k of the group does not exceed

    With two rewards, hard problems (a share of right answers up to 1 - k) reward what is right and punish nothing; the
    others punish what is wrong and reward nothing.
    """
    R_BG = rewards.total_BG
    G = R_BG.shape[1]
    place = max(1, math.ceil(k * G - 1e-9))
    return (R_BG - R_BG.kthvalue(place, dim=1, keepdim=True).values) / (_std(R_BG) + EPS)


def maximum_likelihood(rewards: Rewards) -> Tensor:
    """Learn most from problems that are seldom solved (MaxRL, arXiv 2602.02710).

        A_i = (R_i - mean(R)) / mean(R); 0 if no reward of the group is positive

    The fewer answers are right, the more one counts. Rewards below 0 have no such meaning and count as 0.
    """
    R_BG = rewards.total_BG.clamp(min=0.0)
    mean_B1 = R_BG.mean(dim=1, keepdim=True)
    return _centred(R_BG) / torch.where(mean_B1 > 0, mean_B1, 1.0)


def reinforce(rewards: Rewards, *, positive: NotNegative = 0.1, negative: NotNegative = 1.0) -> Tensor:
    """Reward right answers and punish wrong ones, without a baseline (W-REINFORCE, arXiv 2506.01347).

        A = positive where the answer is right, -negative where it is wrong

    With positive 0 it is NSR, which learns from wrong answers alone.
    """
    return torch.full_like(rewards.total_BG, -negative).masked_fill(rewards.right_BG, positive)


def each_reward(rewards: Rewards) -> Tensor:
    """Normalise each reward in its group, add them with their weights, and normalise that over the step.

        a_i = sum_r w_r (R_ri - mean(R_r)) / (std(R_r) + 1e-4)      within the group
        A_i = (a_i - mean(a)) / (std(a) + 1e-4)                     over the step

    GDPO, arXiv 2601.05242.
    """
    scores_RBG = rewards.scores_RBG
    a_RBG = rewards.weights_R[:, None, None] * _centred(scores_RBG) / (_std(scores_RBG) + EPS)
    a_BG = a_RBG.sum(dim=0)  # its mean is 0 in each group, so in the step too
    return a_BG / (_std(a_BG.view(1, -1)) + EPS)


# By their names in a recipe.
RULES: Mapping[str, AdvantageRule] = {
    "group": group,
    "quantile": quantile,
    "maximum_likelihood": maximum_likelihood,
    "reinforce": reinforce,
    "each_reward": each_reward,
}


def _std(values: Tensor) -> Tensor:
    """The sample standard deviation (divisor G - 1) within each group; 0 in a group of one."""
    return values.std(dim=-1, keepdim=True) if values.shape[-1] > 1 else torch.zeros_like(values)


def group_advantages(
    rewards_BG: Tensor, *, scale: AdvantageScale = "std", baseline: Baseline = "mean", eps: float = EPS
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
    rewards, G = rewards_BG.double(), rewards_BG.shape[1]
    kind = rewards_BG.dtype if rewards_BG.is_floating_point() else torch.float64
    centred = _centred(rewards, torch.finfo(kind).eps)
    if baseline == "leave_one_out" and G > 1:
        centred = centred * (G / (G - 1))
    if scale == "std" and G > 1:
        centred = centred / (rewards.std(dim=1, keepdim=True) + eps)
    return centred if rewards_BG.dtype == torch.float64 else centred.to(torch.float32)


def _centred(values: Tensor, eps: float = torch.finfo(torch.float64).eps) -> Tensor:
    """Subtract each row's mean. What equals the mean counts as neither right nor wrong, so its rounding error goes."""
    centred = values - values.mean(dim=-1, keepdim=True)
    rounding = eps * values.abs().amax(dim=-1, keepdim=True)
    return centred.masked_fill(centred.abs() <= rounding, 0.0)
