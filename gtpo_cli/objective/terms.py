"""The terms of Eq. 11 as a recipe's section `objective` sets them: each hands its switches to one pure function.

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded). Own loop, TRL and verl call these.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gtpo_cli.errors import RecipeError
from gtpo_cli.objective import released_code
from gtpo_cli.objective.advantages import group_advantages
from gtpo_cli.objective.coefficients import coefficients
from gtpo_cli.objective.conflict import ConflictSpans, conflict_spans, conflict_weights
from gtpo_cli.objective.entropy import keep_mask, mean_entropy
from gtpo_cli.objective.loss import token_shares
from gtpo_cli.recipe.schema import ObjectiveRecipe, RolloutRecipe


def advantages(objective: ObjectiveRecipe, rewards_BG: Tensor) -> Tensor:
    """A, Eq. 12."""
    return group_advantages(rewards_BG, scale=objective.advantage_scale, baseline=objective.baseline)


def token_weights(
    objective: ObjectiveRecipe, completion_ids_BGT: Tensor, completion_mask_BGT: Tensor, advantages_BG: Tensor
) -> tuple[ConflictSpans, Tensor]:
    """The conflict spans, which are also measured where they weigh nothing; and lambda, Eq. 9."""
    conflict = objective.conflict
    spans = conflict_spans(
        completion_ids_BGT, completion_mask_BGT, advantages_BG, alignment=conflict.alignment, span=conflict.span
    )
    if not conflict.enabled:
        return spans, torch.ones(completion_mask_BGT.shape, device=completion_mask_BGT.device)
    weights = {"positive_weight": conflict.positive_weight, "negative_weight": conflict.negative_weight}
    if objective.compat == "released_code":
        return spans, released_code.released_weights(spans, advantages_BG, **weights)
    return spans, conflict_weights(spans.forward_BGT | spans.backward_BGT, advantages_BG, **weights)


def passes_filter(
    objective: ObjectiveRecipe, mean_entropy_BG: Tensor, advantages_BG: Tensor, *, initial_entropy: float
) -> Tensor:
    """delta, Eq. 10; bool (B, G). `initial_entropy`: <H>_ini, nats."""
    return keep_mask(
        mean_entropy_BG,
        initial_entropy=initial_entropy,
        threshold=objective.filter.threshold,
        enabled=objective.filter.enabled,
        only_negative=objective.filter.only_negative,
        advantages_BG=advantages_BG,
    )


def trainable(
    objective: ObjectiveRecipe, advantages_BG: Tensor, truncated_BG: Tensor, *, mask_truncated: bool
) -> Tensor:
    """False for truncated completions and groups without reward spread where the recipe leaves those out; (B, G)."""
    keep_BG = ~truncated_BG if mask_truncated else torch.ones_like(advantages_BG, dtype=torch.bool)
    if objective.skip_uninformative_groups:
        keep_BG = keep_BG & (advantages_BG != 0).any(dim=1, keepdim=True)
    return keep_BG


def shares(
    objective: ObjectiveRecipe, rollout: RolloutRecipe, completion_mask_BGT: Tensor, spans: ConflictSpans
) -> Tensor:
    """What a token of each completion counts in the step's average, (B, G)."""
    if objective.compat == "released_code":
        divides = objective.conflict.enabled
        divisor_BG = released_code.released_divisor(spans, completion_mask_BGT) if divides else None
        return released_code.released_shares(completion_mask_BGT, divisor_BG)
    average = rollout.max_completion_tokens if objective.average == "budget" else objective.average
    return token_shares(completion_mask_BGT, average)


@dataclass(frozen=True, slots=True)
class TokenCoefficients:
    """The parts of Eq. 11 for a step, detached, and their product."""

    advantages_BG: Tensor  # A
    spans: ConflictSpans  # M, forward and backward
    weights_BGT: Tensor  # lambda
    mean_entropy_BG: Tensor  # <H>, nats
    filtered_BG: Tensor  # delta = 0 by Eq. 10
    keep_BG: Tensor  # delta; also 0 for what the recipe leaves out
    coefficients_BGT: Tensor  # delta (A - gamma <H>) lambda; 0 at padding


def token_coefficients(
    objective: ObjectiveRecipe,
    *,
    completion_ids_BGT: Tensor,
    completion_mask_BGT: Tensor,
    rewards_BG: Tensor,
    entropy_BGT: Tensor,
    initial_entropy: float,
    truncated_BG: Tensor | None = None,
) -> TokenCoefficients:
    """All of them at once, for a trainer that has the entropies before its loss. GTPO is GRPO with these as advantages.

    Args:
        completion_ids_BGT, completion_mask_BGT: token ids and which are real, contiguous from place 0. Whole groups.
        rewards_BG: weighted sums of the rewards.
        entropy_BGT: H of each token in nats, of the distribution it was sampled from; not read at padding.
        initial_entropy: <H>_ini, nats; read where `objective.filter.enabled` is auto.
        truncated_BG: completions to leave out of the loss; None = none.
    Returns:
        float32 tensors; detached.
    Raises:
        RecipeError: `objective.compat` is released_code, whose entropy and sums are there in gtpo's own loop only.
    """
    if objective.compat != "paper":
        raise RecipeError("objective.compat: released_code is there in gtpo's own loop only; use compat: paper")
    mask = completion_mask_BGT.bool()
    A_BG = advantages(objective, rewards_BG)
    spans, weights_BGT = token_weights(objective, completion_ids_BGT, mask, A_BG)
    H_BG = mean_entropy(entropy_BGT, mask)
    passes_BG = passes_filter(objective, H_BG, A_BG, initial_entropy=initial_entropy)
    left_out_BG = torch.zeros_like(passes_BG) if truncated_BG is None else truncated_BG
    keep_BG = passes_BG & trainable(objective, A_BG, left_out_BG, mask_truncated=True)
    c_BGT = coefficients(A_BG, H_BG, keep_BG, weights_BGT, mask, entropy_coef=objective.entropy_coef)
    return TokenCoefficients(A_BG, spans, weights_BGT, H_BG, ~passes_BG, keep_BG, c_BGT)
