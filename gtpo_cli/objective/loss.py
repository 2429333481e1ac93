"""The policy loss: ratios, clipping, averaging, KL and importance weights.

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded).

    J = sum_{i,t} share_i [ min(r c, clip(r) c) - beta kl_t ],      loss = -J

c_{i,t} is the coefficient (equation.py), r = pi / pi_old, and share_i the weight of a token of completion i in the
average. With one iteration on a batch r is exp(logp - logp.detach()): its value is 1, its gradient that of logp, and
the clip has no effect. Each method chooses `ratio`, `clip`, `clip_target` and `average` (table in docs/objective.md).

The KL term is not multiplied by c, as in Eq. 11. An empty completion contributes 0.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Ratio = Literal["token", "sequence"]
ClipTarget = Literal["objective", "weight"]
Average = Literal["completion", "token", "sum"]
IMPORTANCE_CAP = 2.0


class LossResult(NamedTuple):
    """The result of `policy_loss`. `loss`: scalar with gradient, in the log-probabilities' dtype."""

    loss: Tensor
    metrics: dict[str, float]


def token_shares(completion_mask_BGT: Tensor, average: Average | int = "completion") -> Tensor:
    """Compute the weight of one token of each completion in the average over a step, float64 (B, G).

        completion   1 / (B G |o_i|)     mean over tokens, then over completions      GRPO, Eq. 1; GSPO
        token        1 / sum_i |o_i|     mean over all tokens                         DAPO, CISPO
        sum          1 / (B G)           sum over tokens, mean over completions       RLOO
        an integer L 1 / (B G L)         sum over tokens divided by a budget          Dr. GRPO

    Raises:
        ValueError: an unknown average, or a budget below 1.
    """
    lengths_BG = completion_mask_BGT.bool().sum(dim=-1).double()
    completions = lengths_BG.numel()
    if average == "completion":
        return 1.0 / (completions * lengths_BG.clamp(min=1))
    if average == "token":
        return (1.0 / lengths_BG.sum().clamp(min=1)).expand_as(lengths_BG)
    if average == "sum":
        average = 1
    if not isinstance(average, int) or average < 1:
        raise ValueError(f"average must be 'completion', 'token', 'sum' or a number of tokens, got {average!r}")
    return torch.full_like(lengths_BG, 1.0 / (completions * average))


def policy_loss(
    logprobs_BGT: Tensor,
    coefficients_BGT: Tensor,
    completion_mask_BGT: Tensor,
    *,
    old_logprobs_BGT: Tensor | None = None,
    ref_logprobs_BGT: Tensor | None = None,
    kl_coef: float = 0.0,
    ratio: Ratio = "token",
    clip: tuple[float, float] = (0.2, 0.2),
    clip_target: ClipTarget = "objective",
    average: Average | int = "completion",
    shares_BG: Tensor | None = None,
) -> LossResult:
    """Compute -J for a whole step, or for a micro-batch of it with the step's `shares_BG`.

    Args:
        logprobs_BGT: ln pi(o_t), nats, with gradient. Padding is ignored in this and all (B, G, T) arguments.
        coefficients_BGT: c, no gradient.
        completion_mask_BGT: bool, True at real tokens; |o_i| is its sum.
        old_logprobs_BGT: ln pi_old(o_t); None in the first iteration, where it is ln pi, detached.
        ref_logprobs_BGT: ln pi_ref(o_t); needed when kl_coef > 0.
        kl_coef: beta >= 0.
        ratio: "token": r_t; "sequence": exp(mean_t ln r_t), with the gradient of each token's own log-probability
            (GSPO, arXiv 2507.18071, token form).
        clip: (low, high), >= 0. clip_target: "objective": min(r c, clip(r, 1 - low, 1 + high) c), Eq. 2; "weight":
            sg(min(r, high)) c ln pi, which bounds the weight and keeps all gradients (CISPO, arXiv 2506.13585).
        average: as in `token_shares`. shares_BG: the token shares of the whole step, used instead of `average`.
    Returns:
        LossResult. metrics: "kl" (mean over tokens of kl_t, nats; only when kl_coef > 0), "clipped_share" (share of
        trained tokens, those with c != 0, whose ratio lies outside the clip range; 0 with one iteration), and with
        old_logprobs_BGT "ratio_mean" and "ratio_max" over trained tokens (0 if there are none). All are detached.
    Raises:
        ValueError: kl_coef > 0 without ref_logprobs_BGT, or an unknown ratio, clip_target or average.
    """
    if ratio not in ("token", "sequence") or clip_target not in ("objective", "weight"):
        raise ValueError(
            f"unknown ratio {ratio!r} (token, sequence) or clip_target {clip_target!r} (objective, weight)"
        )
    if kl_coef > 0 and ref_logprobs_BGT is None:
        raise ValueError("policy_loss: kl_coef > 0 needs ref_logprobs_BGT")
    mask, c = completion_mask_BGT.bool(), coefficients_BGT.detach()
    lengths_BG = mask.sum(dim=-1)
    logp = logprobs_BGT.masked_fill(~mask, 0.0)  # padding gives no gradient and no NaN
    old = logp.detach() if old_logprobs_BGT is None else old_logprobs_BGT.detach().masked_fill(~mask, 0.0)
    shares_BG = token_shares(mask, average) if shares_BG is None else shares_BG

    r = torch.exp(logp - old)
    if ratio == "sequence":
        mean_log_ratio = (logp - old).detach().sum(dim=-1, keepdim=True) / lengths_BG.clamp(min=1)[..., None]
        r = torch.exp(mean_log_ratio) * torch.exp(logp - logp.detach())
    low, high = clip
    if clip_target == "objective":
        within = r.clamp(1.0 - low, 1.0 + high)
        objective = torch.minimum(r * c, within * c)
    else:
        within = r.clamp(max=high)
        objective = within.detach() * c * logp
    metrics: dict[str, float] = {}
    if kl_coef > 0 and ref_logprobs_BGT is not None:
        log_ratio = ref_logprobs_BGT.detach().masked_fill(~mask, 0.0) - logp
        kl = torch.exp(log_ratio) - log_ratio - 1.0  # >= 0, unbiased for KL(pi || ref) under pi (Schulman's k3)
        objective = objective - kl_coef * kl
        metrics["kl"] = _token_mean(kl.detach(), mask)
    trained = mask & (c != 0)
    beyond = r.detach() != within.detach()
    metrics["clipped_share"] = _token_mean(beyond, trained)
    if old_logprobs_BGT is not None:
        metrics["ratio_mean"] = _token_mean(r.detach(), trained)
        metrics["ratio_max"] = float(r.detach().masked_fill(~trained, 0.0).max()) if r.numel() else 0.0
    J = (shares_BG * objective.masked_fill(~mask, 0.0).sum(dim=-1)).sum()  # summed in float64
    return LossResult(-J.to(logp.dtype), metrics)


def importance_weights(logprobs_BGT: Tensor, sampled_logprobs_BGT: Tensor, *, cap: float = IMPORTANCE_CAP) -> Tensor:
    """Compute the ratio of each token's probability under the policy to that under the sampler, capped at `cap`.

    These truncated importance weights are for a sampler whose probabilities differ slightly from the policy's. They are
    off by default, since the paper samples and trains with one engine.

        w_{i,t} = min(pi(o_{i,t}) / q(o_{i,t}), cap),   q the sampler's distribution

    Without the cap, weighted means over samples of q equal means over samples of the policy. The cap adds bias and
    bounds the variance (Ionides 2008, truncated importance sampling).

    Args:
        logprobs_BGT: ln pi of the sampled tokens, nats; (B, G, T) or any shape.
        sampled_logprobs_BGT: ln q of the same tokens, of the same shape.
        cap: > 0.
    Returns:
        float32, detached, the same shape, in (0, cap]; 1 where both are equal, which includes padding.
    Raises:
        ValueError: shapes that differ, or a cap that is not positive.
    """
    if logprobs_BGT.shape != sampled_logprobs_BGT.shape:
        raise ValueError(f"shapes differ: {tuple(logprobs_BGT.shape)} and {tuple(sampled_logprobs_BGT.shape)}")
    if cap <= 0:
        raise ValueError(f"cap must be positive, got {cap}")
    gap = logprobs_BGT.detach().float() - sampled_logprobs_BGT.float()
    return torch.exp(gap).clamp(max=cap)


def _token_mean(values_BGT: Tensor, mask_BGT: Tensor) -> float:
    """Average over the mask, 0 if it is empty. The sum is in float64, so that padding makes no difference."""
    return float(values_BGT.masked_fill(~mask_BGT, 0).sum(dtype=torch.float64) / mask_BGT.sum().clamp(min=1))
