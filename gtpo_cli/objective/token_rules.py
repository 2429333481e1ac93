"""Rules for lambda, the weight of each token: which tokens of a completion learn, and how strongly.

A rule is a pure function of `Tokens` that returns lambda. A recipe names it in `objective.token_weights.rule`: one of
RULES, or a function of the user's own. Axes: B prompts, G completions of one prompt, T completion tokens (padded).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, get_args

import torch
from pydantic import Field
from torch import Tensor

from gtpo_cli.objective.advantages import NotNegative
from gtpo_cli.objective.conflict import conflict_weights

Needs = Literal["group", "row", "step"]
Control = Literal["none", "even", "random"]
Share = Annotated[float, Field(gt=0, le=1)]
TokenRule = Callable[..., Tensor]  # (Tokens, **config) -> lambda
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """What a rule may read. The axes are (B, G, T) and (B, G), or (n, T) and (n) for a rule that needs a row.

    Nothing has a gradient. `logprobs` and `entropy` are there for rules that need a row or a step.
    """

    ids: Tensor  # int64
    mask: Tensor  # bool, True at real tokens
    advantages: Tensor  # A, float64
    forward: Tensor  # M, bool: the conflict token belongs to the run at the start
    backward: Tensor  # M, bool: to the run at the end
    noise: Tensor  # uniform in [0, 1), the same whenever this step is computed
    logprobs: Tensor | None = None  # ln pi, nats
    entropy: Tensor | None = None  # H, nats


def needs(what: Needs) -> Callable[[Function], Function]:
    """Declare what a rule reads; without a declaration it is "step".

    "group": ids, advantages and conflict tokens of whole groups. "row": also log-probabilities and entropies, but of
    any completions, so it must not compare completions. "step": those of all completions of the step at once, which
    costs one more forward pass (metric time/weigh). A rule for the loss that needs the step gets `Ratio.ranks`. Raises
    ValueError for another word.
    """
    if what not in get_args(Needs):
        raise ValueError(f'needs({what!r}): write @needs("group"), @needs("row") or @needs("step")')

    def declare(function: Function) -> Function:
        function.needs = what  # type: ignore[attr-defined]
        return function

    return declare


def needs_of(rule: Callable[..., Any], unsaid: Needs = "step") -> Needs:
    """Return what a rule declares with `needs`."""
    found: Needs = getattr(rule.func if isinstance(rule, partial) else rule, "needs", unsaid)
    return found


@needs("group")
def conflict(tokens: Tokens, *, positive: NotNegative = 2.0, negative: NotNegative = 0.0) -> Tensor:
    """Weigh conflict tokens (arXiv 2508.03772, Eq. 9): `positive` where A > 0, `negative` where A < 0."""
    return conflict_weights(
        tokens.forward | tokens.backward, tokens.advantages, positive_weight=positive, negative_weight=negative
    )


@needs("step")
def top_entropy(tokens: Tokens, *, share: Share = 0.2) -> Tensor:
    """Train only the tokens with the highest entropies of the step (arXiv 2506.01939).

    lambda = 1 if H >= tau, else 0;   tau the (1 - share) quantile of H over all tokens of the step
    """
    assert tokens.entropy is not None
    H = tokens.entropy.float()
    if not bool(tokens.mask.any()):
        return torch.zeros_like(H)
    return (H >= _quantile(H[tokens.mask], 1.0 - share)).float()


@needs("step")
def clip_cov(tokens: Tokens, *, share: Share = 2e-4, low: float = 1.0, high: float = 5.0) -> Tensor:
    """Give no gradient to a few tokens with a large covariance (Clip-Cov, arXiv 2505.22617).

    cov = (ln pi - mean ln pi) (A - mean A), means over all tokens of the step
    lambda = 0 for max(1, floor(share x tokens)) tokens, drawn from those with low < cov < high; else 1
    """
    assert tokens.logprobs is not None
    if not low < high:
        raise ValueError(f"low: {low} is not below high, which is {high}")
    mask, logprobs = tokens.mask, tokens.logprobs.double()
    A = tokens.advantages.double()[..., None].expand_as(logprobs)
    cov = (logprobs - logprobs[mask].mean()) * (A - A[mask].mean())
    candidates = mask & (cov > low) & (cov < high)
    number = min(max(1, int(share * int(mask.sum()))), int(candidates.sum()))
    weights = torch.ones_like(logprobs, dtype=torch.float32)
    drawn = tokens.noise.masked_fill(~candidates, 2.0).flatten().argsort()[:number]
    weights.view(-1)[drawn] = 0.0
    return weights


@needs("row")
def entropy_advantage(
    tokens: Tokens, *, alpha: NotNegative = 0.4, kappa: Annotated[float, Field(gt=1)] = 2.0
) -> Tensor:
    """Raise the advantage of uncertain tokens (arXiv 2506.14758).

        lambda A = A + min(alpha H, |A| / kappa)

    As kappa > 1, the sign of A stays. Where A = 0, lambda is 1.
    """
    assert tokens.entropy is not None
    A = tokens.advantages.double()[..., None]
    bonus = torch.minimum(alpha * tokens.entropy.double(), A.abs() / kappa)
    return torch.where(A == 0, 1.0, 1.0 + bonus / torch.where(A == 0, 1.0, A)).float()


@needs("step")
def entropy_credit(tokens: Tokens, *, outcome: NotNegative = 1.0, share: NotNegative = 0.1) -> Tensor:
    """Share out credit by entropy (the other GTPO, arXiv 2508.04349, Eq. 3 to 6).

        r = outcome + share n_t H / sum H                   in a completion with A > 0
        r = -(outcome + share n_t (1 / H) / sum (1 / H))    in one with A < 0
        lambda A = (r - mean(r)) / std(r)

    The sums are over the n_t completions of the same side of the group that have a token at this place; mean and
    standard deviation (divisor n) over all tokens of the side. So a right answer as a whole is not preferred to a wrong
    one: credit only moves between its tokens. Where A = 0, lambda is 1.
    """
    assert tokens.entropy is not None
    A_BG1 = tokens.advantages.double()[..., None]
    credit_BGT = _credit(tokens.entropy, A_BG1, tokens.mask, outcome=outcome, share=share)
    weights = tokens.mask.double()
    for side_BGT in (tokens.mask & (A_BG1 > 0), tokens.mask & (A_BG1 < 0)):
        weights = torch.where(side_BGT, _standardised(credit_BGT, side_BGT) / A_BG1, weights)
    return weights.float()


@needs("step")
def sequence_entropy_credit(tokens: Tokens, *, outcome: NotNegative = 1.0, share: NotNegative = 0.1) -> Tensor:
    """Share out credit among completions by entropy (GRPO-S, arXiv 2508.04349, Eq. 8 and 9).

        r = outcome + share n H / sum H                   if A > 0;   H the mean entropy of the completion's tokens
        r = -(outcome + share n (1 / H) / sum (1 / H))    if A < 0
        lambda A = (r - mean(r)) / std(r)

    The sums are over the n completions of the same side of the group; mean and standard deviation (divisor n) over both
    sides. Where A = 0, lambda is 1: unlike in the paper, a group of right answers alone teaches nothing. The paper
    averages the ratios of a completion (Eq. 11), whose gradient is that of the rule `token` at the first update.
    """
    assert tokens.entropy is not None
    A_BG1 = tokens.advantages.double()[..., None]
    taught_BG1 = tokens.mask.any(dim=-1, keepdim=True) & (A_BG1 != 0)
    length_BG1 = tokens.mask.sum(dim=-1, keepdim=True).clamp(min=1)
    H_BG1 = tokens.entropy.double().masked_fill(~tokens.mask, 0.0).sum(dim=-1, keepdim=True) / length_BG1
    credit_BG1 = _credit(H_BG1, A_BG1, taught_BG1, outcome=outcome, share=share)
    weights_BG1 = torch.where(taught_BG1, _standardised(credit_BG1, taught_BG1) / A_BG1, 1.0)
    return (weights_BG1 * tokens.mask).float()


def _credit(H: Tensor, A_BG1: Tensor, mask: Tensor, *, outcome: float, share: float) -> Tensor:
    """Return r of the two rules above: what each side of a group gets, more of it at high entropy where A > 0, and at
    low entropy where A < 0. 0 where A = 0 or the mask is False."""
    H = H.double().clamp(min=1e-6)
    credit = torch.zeros_like(H)
    for sign, signal in ((1.0, H), (-1.0, 1.0 / H)):
        side = mask & (sign * A_BG1 > 0)
        signal = signal.masked_fill(~side, 0.0)
        part = side.sum(dim=1, keepdim=True) * signal / signal.sum(dim=1, keepdim=True).clamp(min=1e-12)
        credit = torch.where(side, sign * (outcome + share * part), credit)
    return credit


def _standardised(values: Tensor, side: Tensor) -> Tensor:
    """Return the values less their mean in each group, over their standard deviation; only those where `side` count."""
    count_B11 = side.sum(dim=(1, 2), keepdim=True).clamp(min=1)
    mean_B11 = values.masked_fill(~side, 0.0).sum(dim=(1, 2), keepdim=True) / count_B11
    centred = (values - mean_B11).masked_fill(~side, 0.0)
    return centred / ((centred.square().sum(dim=(1, 2), keepdim=True) / count_B11).sqrt() + 1e-8)


# By their names in a recipe. "none" is lambda = 1.
RULES: Mapping[str, TokenRule] = {
    "conflict": conflict,
    "top_entropy": top_entropy,
    "clip_cov": clip_cov,
    "entropy_advantage": entropy_advantage,
    "entropy_credit": entropy_credit,
    "sequence_entropy_credit": sequence_entropy_credit,
}


def controlled(weights: Tensor, tokens: Tokens, control: Control) -> Tensor:
    """Return the weights of a rule, or those of a control for it. Each completion keeps the sum of its weights.

    "even": every token of a completion gets their mean. "random": the tokens of a completion swap them at random. If a
    rule teaches no more than its control, its choice of tokens does not matter.
    """
    if control == "none":
        return weights
    if control == "even":
        lengths = tokens.mask.sum(dim=-1, keepdim=True).clamp(min=1)
        return (weights * tokens.mask).sum(dim=-1, keepdim=True) / lengths * tokens.mask
    draw = (4096 * tokens.noise).frac()  # the lower digits: a rule that draws has sorted by the upper ones
    return weights.gather(-1, draw.masked_fill(~tokens.mask, 2.0).argsort(dim=-1, stable=True))


def _quantile(values_M: Tensor, q: float) -> Tensor:
    """Return the quantile with linear interpolation; `torch.quantile` takes at most 2^24 values."""
    ordered = values_M.sort().values
    place = q * (len(ordered) - 1)
    low = int(place)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(ordered) - 1)], place - low)
