"""How strongly each token is pushed, and in which direction: c of Eq. 11, for every method and both trainers.

`group_terms` computes what needs whole groups: advantages and conflict tokens. `row_terms` computes the rest. The rule
for lambda runs as soon as what it needs is known.
`coefficients` is the formula that joins the factors.
Axes: B prompts, G completions of one prompt, N completions, T completion tokens (right-padded).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpo_cli.entropy_filter import LN_2, FilterMode
from gtpo_cli.errors import RecipeError
from gtpo_cli.objective.advantages import AdvantageRule, Rewards, group
from gtpo_cli.objective.conflict import Alignment, ConflictSpans, Span, conflict_spans
from gtpo_cli.objective.entropy import keep_mask, mean_entropy
from gtpo_cli.objective.loss import RULES as LOSSES
from gtpo_cli.objective.loss import Average, LossRule, token, token_shares
from gtpo_cli.objective.token_rules import Control, Needs, TokenRule, Tokens, conflict, controlled, needs_of


class GroupTerms(NamedTuple):
    """The factors that depend on whole groups.

    `advantages_BG`: A, float64. `spans`: M, forward and backward, measured even if the objective does not use it.
    `weights_BGT`: lambda; 1 until `Method.weigh` is given what its rule needs. `shares_BG`: weight of each token of a
    completion in the step's average, float64. `included_BG`: bool, False if the method leaves the completion out of the
    loss regardless of its entropy.
    """

    advantages_BG: Tensor
    spans: ConflictSpans
    weights_BGT: Tensor
    shares_BG: Tensor
    included_BG: Tensor


class RowTerms(NamedTuple):
    """The factors that depend on entropies. All are detached.

    `mean_entropy_N`: <H>, nats. `filtered_N`: delta = 0 by Eq. 10. `keep_N`: delta; also 0 if the recipe leaves the
    completion out. `coefficients_NT`: delta (A - gamma <H>) lambda; 0 at padding.
    """

    mean_entropy_N: Tensor
    filtered_N: Tensor
    keep_N: Tensor
    coefficients_NT: Tensor


class Method(NamedTuple):
    """The switches of a method, as this package's functions take them. The defaults are GTPO's."""

    advantages: AdvantageRule = group  # Eq. 12
    alignment: Alignment = "position"  # conflict_spans, Section 5.1
    span: Span = "ends"
    token_rule: TokenRule | None = conflict  # Eq. 9; None: lambda = 1
    control: Control = "none"
    filter: FilterMode = "auto"  # keep_mask, Eq. 10
    threshold: float = LN_2
    only_negative: bool = False
    entropy_coef: float = 0.1  # gamma, Eq. 11
    kl_coef: float = 0.0  # policy_loss: beta, Eq. 1
    loss: LossRule = token
    clip: tuple[float, float] = (0.2, 0.2)
    average: Average | int = "completion"

    @property
    def needs(self) -> Needs:
        """What the rule for lambda needs."""
        return "group" if self.token_rule is None else needs_of(self.token_rule)

    @property
    def ranks(self) -> bool:
        """Whether the rule for the loss compares all tokens of the step."""
        return needs_of(self.loss, "row") == "step"

    @property
    def is_built_in(self) -> bool:
        """Whether the rule for the loss is. Then no token's gradient passes through another one's term."""
        return (self.loss.func if isinstance(self.loss, partial) else self.loss) in LOSSES.values()

    def weigh(self, tokens: Tokens) -> Tensor:
        """Return lambda, float32 and 0 at padding. Raises RecipeError if a rule gives something else.

        Only where the model itself gave numbers that are not finite may lambda be none either: that step is skipped.
        """
        if self.token_rule is None:
            return tokens.mask.float()
        given = self.token_rule(tokens)
        if not isinstance(given, Tensor) or given.shape != tokens.mask.shape:
            raise RecipeError(
                f"objective.token_weights.rule: gave {_kind(given)}; expected one number for each token, a "
                f"tensor of the shape {tuple(tokens.mask.shape)}"
            )
        weights = given.detach().float().masked_fill(~tokens.mask, 0.0)
        measured = [given[tokens.mask] for given in (tokens.logprobs, tokens.entropy) if given is not None]
        if not bool(torch.isfinite(weights).all()) and all(bool(torch.isfinite(given).all()) for given in measured):
            raise RecipeError("objective.token_weights.rule: gave an infinite weight, or one that is not a number")
        return controlled(weights, tokens, self.control)

    def advantages_of(self, rewards: Rewards) -> Tensor:
        """Return A, float64 (B, G). Raises RecipeError if a rule gives something else."""
        given, shape = self.advantages(rewards), rewards.total_BG.shape
        if not isinstance(given, Tensor) or given.shape != shape:
            raise RecipeError(
                f"objective.advantages.rule: gave {_kind(given)}; expected one number for each completion, a tensor of "
                f"the shape {tuple(shape)}"
            )
        if not bool(torch.isfinite(given).all()):
            raise RecipeError("objective.advantages.rule: gave an infinite advantage, or one that is not a number")
        return given.detach().double()

    def loss_arguments(self) -> dict[str, Any]:
        """Return the keywords of `policy_loss` for the ratio and its clipping."""
        return {"rule": self.loss, "clip": self.clip}


def _kind(given: object) -> str:
    return f"the shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__


def group_terms(
    method: Method,
    *,
    completion_ids_BGT: Tensor,
    completion_mask_BGT: Tensor,
    rewards: Rewards,
    noise_BGT: Tensor | None = None,
    left_out_BG: Tensor | None = None,
) -> GroupTerms:
    """Compute the factors that depend on the rewards and tokens of whole groups.

    Args:
        completion_ids_BGT, completion_mask_BGT: token ids and their mask; real tokens are contiguous from position 0.
        noise_BGT: uniform in [0, 1), for rules that draw tokens; None: 0.
        left_out_BG: bool, completions that the loss leaves out, such as truncated ones; None: the loss uses all.
    """
    mask_BGT = completion_mask_BGT.bool()
    A_BG = method.advantages_of(rewards)  # Eq. 12
    spans = conflict_spans(completion_ids_BGT, mask_BGT, A_BG, alignment=method.alignment, span=method.span)  # M
    included_BG = torch.ones_like(A_BG, dtype=torch.bool) if left_out_BG is None else ~left_out_BG
    weights_BGT = mask_BGT.float()
    noise_BGT = torch.zeros_like(weights_BGT) if noise_BGT is None else noise_BGT
    if method.needs == "group":
        weights_BGT = method.weigh(Tokens(completion_ids_BGT, mask_BGT, A_BG, *spans, noise_BGT))
    return GroupTerms(A_BG, spans, weights_BGT, token_shares(mask_BGT, method.average), included_BG)


def row_terms(
    method: Method,
    *,
    advantages_N: Tensor,
    weights_NT: Tensor,
    included_N: Tensor,
    completion_mask_NT: Tensor,
    entropy_NT: Tensor,
    initial_entropy: float,
) -> RowTerms:
    """Compute the factors that depend on entropies, for any completions of a step.

    Args:
        advantages_N, weights_NT, included_N: the values of `group_terms` for these completions.
        completion_mask_NT: bool, True at real tokens.
        entropy_NT: H of each token's sampling distribution, nats; ignored at padding.
        initial_entropy: <H>_ini, nats; read only if the filter is auto.
    """
    H_N = mean_entropy(entropy_NT, completion_mask_NT)  # <H>
    passes_N = keep_mask(  # Eq. 10
        H_N,
        initial_entropy=initial_entropy,
        threshold=method.threshold,
        enabled=method.filter,
        only_negative=method.only_negative,
        advantages_BG=advantages_N,
    )
    keep_N = passes_N & included_N  # delta
    c_NT = coefficients(  # delta (A - gamma <H>) lambda
        advantages_N, H_N, keep_N, weights_NT, completion_mask_NT, entropy_coef=method.entropy_coef
    )
    return RowTerms(H_N, ~passes_N, keep_N, c_NT.to(entropy_NT.dtype))


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
        keep_BG: delta_i, bool. weights_BGT: lambda_{i,t}; below 0 it turns a token's sign.
        completion_mask_BGT: bool, True at real tokens.
        entropy_coef: gamma >= 0.
    Returns:
        (B, G, T), detached, float64 if the advantages are, else float32; exactly 0 at padding and where delta is 0.
    """
    # with gamma 0, an infinite or missing entropy must not matter
    entropy_term_BG = entropy_coef * mean_entropy_BG.detach() if entropy_coef else 0.0
    c_BG = torch.where(keep_BG, advantages_BG.detach() - entropy_term_BG, 0.0)
    return (c_BG[..., None] * weights_BGT).masked_fill(~completion_mask_BGT.bool(), 0.0)
