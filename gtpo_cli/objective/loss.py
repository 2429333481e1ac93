"""The policy loss: GTPO (Eq. 11), GRPO (Eq. 1 and 2) and everything between them, by switches.

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded).

One coefficient for each completion, c_i = delta_i (A_i - gamma <H>_i), one weight lambda for each token:

    J = mean over groups of 1/G sum_i 1/|o_i| sum_t [ lambda_{i,t} min(r c, clip(r, 1-eps, 1+eps) c) - beta kl_t ]

and the loss is -J. GTPO: beta 0. GRPO: delta 1, gamma 0, lambda 1. With one iteration on a batch r is exp(logp -
logp.detach()): value 1, gradient that of logp, and the clip does nothing.

Readings that this file settles: delta takes a completion's policy-gradient term out and leaves its KL term, as the
equation has it; an empty completion contributes 0; the sign of A that decides lambda is taken before gamma <H>.

`compat="released_code"` is the authors' trainer: completions are summed, not averaged over G, and each is divided by
its conflict count too (`divisor_BG`, from released_code.py). See docs/released_code.md.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Compat = Literal["paper", "released_code"]


class LossResult(NamedTuple):
    """`loss`: scalar with gradient. `metrics`: detached sums and means by name (see policy_loss)."""

    loss: Tensor
    metrics: dict[str, float]


def policy_loss(
    logprobs_BGT: Tensor,
    *,
    old_logprobs_BGT: Tensor | None = None,
    ref_logprobs_BGT: Tensor | None = None,
    advantages_BG: Tensor,
    mean_entropy_BG: Tensor,
    keep_BG: Tensor,
    weights_BGT: Tensor,
    completion_mask_BGT: Tensor,
    entropy_coef: float = 0.0,
    kl_coef: float = 0.0,
    clip_epsilon: float = 0.2,
    compat: Compat = "paper",
    divisor_BG: Tensor | None = None,
) -> LossResult:
    """-J of Eq. 11 / Eq. 1 for the completions given (a whole step, or a micro-batch of it).

    Args:
        logprobs_BGT: ln pi(o_t), nats, with gradient. Padded places are not read, in this and all (B, G, T) arguments.
        old_logprobs_BGT: ln pi_old(o_t) of the first iteration; None = logprobs detached (one iteration).
        ref_logprobs_BGT: ln pi_ref(o_t); needed when kl_coef > 0.
        advantages_BG: A_i.
        mean_entropy_BG: <H>_i in nats; read when entropy_coef > 0.
        keep_BG: delta_i, bool.
        weights_BGT: lambda, >= 0.
        completion_mask_BGT: bool, True at real tokens; |o_i| is its sum.
        entropy_coef: gamma >= 0. kl_coef: beta >= 0. clip_epsilon: eps of Eq. 2, in (0, 1).
        compat: "paper" averages over the G completions given; "released_code" sums them (then averages groups).
        divisor_BG: further divisor of each completion, >= 1 (released_code); None = 1.
    Returns:
        LossResult. metrics: "kl" (mean over tokens of kl_t, nats; only when kl_coef > 0) and
        "clipped_share" (share of tokens whose ratio lies outside the clip range; 0 with one iteration).
    Raises:
        ValueError: kl_coef > 0 without ref_logprobs_BGT, or an unknown compat.
    """
    if compat not in ("paper", "released_code"):
        raise ValueError(f"compat must be 'paper' or 'released_code', got {compat!r}")
    if kl_coef > 0 and ref_logprobs_BGT is None:
        raise ValueError("policy_loss: kl_coef > 0 needs ref_logprobs_BGT")
    mask = completion_mask_BGT.bool()
    lengths = mask.sum(dim=-1)
    logp = logprobs_BGT.masked_fill(~mask, 0.0)  # no gradient, and no NaN, out of padding
    old = logp.detach() if old_logprobs_BGT is None else old_logprobs_BGT.detach().masked_fill(~mask, 0.0)

    # gamma 0 must not let an infinite or missing entropy in
    entropy_term = entropy_coef * mean_entropy_BG.detach() if entropy_coef else 0.0
    coefficient = torch.where(keep_BG, advantages_BG - entropy_term, 0.0)[..., None]
    ratio = torch.exp(logp - old)
    clipped = ratio.clamp(1.0 - clip_epsilon, 1.0 + clip_epsilon)
    objective = weights_BGT * torch.minimum(ratio * coefficient, clipped * coefficient)
    metrics: dict[str, float] = {}
    if kl_coef > 0 and ref_logprobs_BGT is not None:
        log_ratio = ref_logprobs_BGT.detach().masked_fill(~mask, 0.0) - logp
        kl = torch.exp(log_ratio) - log_ratio - 1.0  # >= 0, unbiased for KL(pi || ref) under pi (Schulman's k3)
        objective = objective - kl_coef * kl
        metrics["kl"] = float(kl.detach().masked_fill(~mask, 0.0).sum() / lengths.sum().clamp(min=1))
    per_completion = _per_token_mean(objective, mask, lengths)
    if divisor_BG is not None:
        per_completion = per_completion / divisor_BG
    per_group = per_completion.mean(dim=1) if compat == "paper" else per_completion.sum(dim=1)

    beyond = (ratio.detach() != clipped.detach()) & mask
    metrics["clipped_share"] = float(beyond.sum() / lengths.sum().clamp(min=1))
    return LossResult(-per_group.mean(), metrics)


def _per_token_mean(values_BGT: Tensor, mask_BGT: Tensor, lengths_BG: Tensor) -> Tensor:
    """1/|o_i| sum_t over real tokens; 0 for an empty completion."""
    return values_BGT.masked_fill(~mask_BGT, 0.0).sum(dim=-1) / lengths_BG.clamp(min=1)
