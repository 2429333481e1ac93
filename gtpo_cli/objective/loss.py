"""The policy loss: ratios, clipping, averaging, KL and importance weights.

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded).

    J = sum_{i,t} share_i [ min(r c, clip(r) c) - beta kl_t ],      loss = -J

The bracket's first term is the rule `token` below. A recipe names another one in `objective.loss.rule`: one of RULES,
or a function of the user's own. c_{i,t} is the coefficient (equation.py), r = pi / pi_old, and share_i the weight of a
token of completion i in the average. With one iteration on a batch r is exp(logp - logp.detach()): its value is 1, its
gradient that of logp, and all rules here pull alike.

The KL term is not multiplied by c, as in Eq. 11. An empty completion contributes 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from gtpo_cli.errors import RecipeError
from gtpo_cli.objective.advantages import NotNegative
from gtpo_cli.objective.token_rules import Share, needs

Average = Literal["completion", "token", "sum"]
IMPORTANCE_CAP = 2.0


class LossResult(NamedTuple):
    """The result of `policy_loss`. `loss`: scalar with gradient, in the log-probabilities' dtype."""

    loss: Tensor
    metrics: dict[str, float]


class Ratio(NamedTuple):
    """What a rule for the loss may read, (n, T) or (B, G, T); 0 at padding. Only `logprobs` has a gradient."""

    logprobs: Tensor  # ln pi, nats
    old_logprobs: Tensor  # ln pi_old, nats
    coefficients: Tensor  # c
    mask: Tensor  # bool, True at real tokens
    clip: tuple[float, float]  # low, high
    ranks: Tensor | None = None  # `covariance_ranks`, for a rule that needs the step; None before the first update

    @property
    def value(self) -> Tensor:
        """r = pi / pi_old."""
        return torch.exp(self.logprobs - self.old_logprobs)

    def mean(self, values: Tensor) -> Tensor:
        """Average over the tokens of each completion, (n, 1) or (B, G, 1)."""
        lengths = self.mask.sum(dim=-1, keepdim=True).clamp(min=1)
        return values.masked_fill(~self.mask, 0.0).sum(dim=-1, keepdim=True) / lengths


class TokenObjective(NamedTuple):
    """What a rule may return instead of its objective alone, for the metrics of the ratio."""

    objective: Tensor
    ratio: Tensor
    clipped: Tensor  # bool: outside the clip range


LossRule = Callable[..., Tensor | TokenObjective]  # (Ratio, **config) -> each token's part of J


def token(ratio: Ratio) -> TokenObjective:
    """min(r c, clip(r, 1 - low, 1 + high) c)                         arXiv 2508.03772, Eq. 2"""
    return _clipped(ratio, ratio.value)


def sequence(ratio: Ratio) -> TokenObjective:
    """As `token`, with s = exp(mean_t ln r_t) for r, and the gradient of each token's own log-probability.

    GSPO, arXiv 2507.18071, in its token form.
    """
    s = torch.exp(ratio.mean(ratio.logprobs.detach() - ratio.old_logprobs))
    return _clipped(ratio, s * torch.exp(ratio.logprobs - ratio.logprobs.detach()))


def weight(ratio: Ratio) -> TokenObjective:
    """sg(min(r, high)) c ln pi: the bound is for the weight, so every token keeps its gradient.

    CISPO, arXiv 2506.13585.
    """
    r, high = ratio.value.detach(), ratio.clip[1]
    return TokenObjective(r.clamp(max=high) * ratio.coefficients * ratio.logprobs, r, r > high)


def geometric(ratio: Ratio) -> TokenObjective:
    """s c, s = exp(mean_t ln r'_t), where ln r' is ln r, clipped at `high` where c > 0 and at -`low` where c < 0.

    GMPO, arXiv 2507.20673. The range is one of logarithms there: 0.4. As in `sequence` the gradient is that of
    each token's own log-probability, 0 where it is clipped, so that token weights keep their places.
    """
    low, high = ratio.clip
    log_r, c = ratio.logprobs - ratio.old_logprobs, ratio.coefficients
    within = torch.where(c > 0, log_r.clamp(max=high), torch.where(c < 0, log_r.clamp(min=-low), log_r))
    s = torch.exp(ratio.mean(within.detach()))
    return TokenObjective(s * torch.exp(within - within.detach()) * c, ratio.value, within != log_r)


def soft(
    ratio: Ratio, *, positive: Annotated[float, Field(gt=0)] = 1.0, negative: Annotated[float, Field(gt=0)] = 1.05
) -> TokenObjective:
    """4 / tau sigmoid(tau (r - 1)) c, tau = `positive` where c > 0, else `negative`: a gate instead of the clip.

    SAPO, arXiv 2511.20347.
    """
    r = ratio.value
    tau = torch.full_like(r, negative).masked_fill(ratio.coefficients > 0, positive)
    gate = 4.0 / tau * torch.sigmoid(tau * (r - 1.0))
    return TokenObjective(gate * ratio.coefficients, r, torch.zeros_like(ratio.mask))


@needs("step")
def kl_cov(ratio: Ratio, *, share: Share = 2e-4, coef: NotNegative = 1.0) -> TokenObjective:
    """r c, less coef |ln r| where the covariance is among the step's largest `share`, one token at least; no clip.

    KL-Cov, arXiv 2505.22617. Tokens are chosen with ln pi_old, so all updates of a batch hold the same ones.
    """
    r, held = ratio.value, torch.zeros_like(ratio.mask)
    if ratio.ranks is not None:
        held = ratio.mask & (ratio.ranks <= share)
    distance = (ratio.logprobs - ratio.old_logprobs).abs()
    return TokenObjective(r * ratio.coefficients - coef * distance * held, r, torch.zeros_like(held))


def _clipped(ratio: Ratio, r: Tensor) -> TokenObjective:
    low, high = ratio.clip
    within = r.clamp(1.0 - low, 1.0 + high)
    c = ratio.coefficients
    return TokenObjective(torch.minimum(r * c, within * c), r, r.detach() != within.detach())


# By their names in a recipe.
RULES: Mapping[str, LossRule] = {
    "token": token,
    "sequence": sequence,
    "weight": weight,
    "geometric": geometric,
    "soft": soft,
    "kl_cov": kl_cov,
}


def covariance_ranks(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Rank the tokens of a step by (ln pi - mean ln pi) (A - mean A), means over all of them (arXiv 2505.22617).

    Args:
        logprobs: ln pi, nats, (N, T) or (B, G, T). advantages: A, (N) or (B, G). mask: bool, the tokens that count.
    Returns:
        float64, of the shape of `mask`: the share of tokens from the largest product down to this one. It is 0 for the
        first, so that `ranks <= share` chooses max(1, floor(share tokens)); 2 outside the mask.
    """
    logp, A = logprobs.detach().double(), advantages.double()[..., None].expand(mask.shape)
    number = int(mask.sum())
    ranks = torch.full(mask.shape, 2.0, dtype=torch.float64, device=mask.device)
    if number:
        products = (logp[mask] - logp[mask].mean()) * (A[mask] - A[mask].mean())
        places = products.argsort(descending=True, stable=True).argsort()
        ranks[mask] = torch.where(places == 0, 0.0, (places + 1).double() / number)
    return ranks


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
    rule: LossRule = token,
    clip: tuple[float, float] = (0.2, 0.2),
    average: Average | int = "completion",
    shares_BG: Tensor | None = None,
    ranks_BGT: Tensor | None = None,
) -> LossResult:
    """Compute -J for a whole step, or for a micro-batch of it with the step's `shares_BG`.

    Args:
        logprobs_BGT: ln pi(o_t), nats, with gradient. Padding is ignored in this and all (B, G, T) arguments.
        coefficients_BGT: c, no gradient.
        completion_mask_BGT: bool, True at real tokens; |o_i| is its sum.
        old_logprobs_BGT: ln pi_old(o_t); None in the first iteration, where it is ln pi, detached.
        ref_logprobs_BGT: ln pi_ref(o_t); needed when kl_coef > 0.
        kl_coef: beta >= 0.
        rule: each token's part of J, as above. clip: (low, high), >= 0; each rule says what they bound.
        average: as in `token_shares`. shares_BG: the token shares of the whole step, used instead of `average`.
        ranks_BGT: `covariance_ranks` of the whole step, for rules that need it.
    Returns:
        LossResult. metrics: "kl" (mean over tokens of kl_t, nats; only when kl_coef > 0), "clipped_share" (share of
        trained tokens, those with c != 0, whose ratio lies outside the clip range; 0 with one iteration), and with
        old_logprobs_BGT "ratio_mean" and "ratio_max" over trained tokens (0 if there are none). All are detached.
    Raises:
        ValueError: kl_coef > 0 without ref_logprobs_BGT, or an unknown average.
        RecipeError: a rule's result has another shape, or no gradient.
    """
    if kl_coef > 0 and ref_logprobs_BGT is None:
        raise ValueError("policy_loss: kl_coef > 0 needs ref_logprobs_BGT")
    mask, c = completion_mask_BGT.bool(), coefficients_BGT.detach()
    logp = logprobs_BGT.masked_fill(~mask, 0.0)  # padding gives no gradient and no NaN
    old = logp.detach() if old_logprobs_BGT is None else old_logprobs_BGT.detach().masked_fill(~mask, 0.0)
    shares_BG = token_shares(mask, average) if shares_BG is None else shares_BG
    found = rule(Ratio(logp, old, c, mask, clip, ranks_BGT))
    if not isinstance(found, TokenObjective):
        found = TokenObjective(found, torch.exp(logp.detach() - old), torch.zeros_like(mask))
    objective, r, clipped = found
    if objective.shape != mask.shape:
        raise RecipeError(
            f"objective.loss.rule: gave the shape {tuple(objective.shape)}; expected one number for each token, a "
            f"tensor of the shape {tuple(mask.shape)}"
        )
    if logp.requires_grad and not objective.requires_grad:
        raise RecipeError(
            "objective.loss.rule: gave nothing with a gradient; compute it from ratio.logprobs or ratio.value"
        )
    objective = objective.masked_fill(c == 0, 0.0)  # so that a rule with a term of its own trains no more tokens
    metrics: dict[str, float] = {}
    if kl_coef > 0 and ref_logprobs_BGT is not None:
        log_ratio = ref_logprobs_BGT.detach().masked_fill(~mask, 0.0) - logp
        kl = torch.exp(log_ratio) - log_ratio - 1.0  # >= 0, unbiased for KL(pi || ref) under pi (Schulman's k3)
        objective = objective - kl_coef * kl
        metrics["kl"] = _token_mean(kl.detach(), mask)
    trained = mask & (c != 0)
    metrics["clipped_share"] = _token_mean(clipped, trained)
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
