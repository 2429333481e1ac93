"""Which completions owe a gradient: those whose coefficient delta (A - gamma <H>) is not 0. All tensors are (B, G)."""

from __future__ import annotations

import torch
from torch import Tensor

from gtpo_cli.objective import TokenBatch, keep_mask, mean_entropy
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import ObjectiveRecipe


def kept_whatever_the_entropy(recipe: Recipe, batch: TokenBatch, advantages_BG: Tensor) -> Tensor:
    """delta before entropies are known: False for truncated completions and groups without reward spread, where the
    recipe leaves those out."""
    keep_BG = torch.ones_like(advantages_BG, dtype=torch.bool)
    if recipe.rollout.mask_truncated:
        keep_BG &= ~batch.truncated_BG
    if recipe.objective.skip_uninformative_groups:
        keep_BG &= (advantages_BG != 0).any(dim=1, keepdim=True)
    return keep_BG


def kept_by_entropy(
    objective: ObjectiveRecipe, mean_entropy_BG: Tensor, advantages_BG: Tensor, *, initial_entropy: float
) -> Tensor:
    """delta as far as the entropy filter decides it (Eq. 10), with the recipe's settings. Entropies in nats."""
    return keep_mask(
        mean_entropy_BG,
        initial_entropy=initial_entropy,
        threshold=objective.filter.threshold,
        enabled=objective.filter.enabled,
        only_negative=objective.filter.only_negative,
        advantages_BG=advantages_BG,
    )


def owe_gradient(recipe: Recipe, keep_BG: Tensor, advantages_BG: Tensor) -> Tensor:
    """False where the coefficient is 0 as far as delta is known, and no KL term asks for a gradient of its own."""
    objective = recipe.objective
    if objective.kl_coef > 0:
        return torch.ones_like(keep_BG)
    return keep_BG if objective.entropy_coef > 0 else keep_BG & (advantages_BG != 0)


def likely_filtered(recipe: Recipe, batch: TokenBatch, advantages_BG: Tensor, *, initial_entropy: float) -> Tensor:
    """Completions that Eq. 10 will probably filter, going by their mean surprisal, whose expectation <H> is.

    Measured first, and without preparing a backward pass, they cost a third; one that is kept after all is trained on
    then. All False where a KL term asks for every gradient.
    """
    objective = recipe.objective
    if objective.kl_coef > 0:
        return torch.zeros_like(advantages_BG, dtype=torch.bool)
    surprisal_BG = mean_entropy(-batch.sampled_logprobs_BGT, batch.completion_mask_BGT)
    return ~kept_by_entropy(objective, surprisal_BG, advantages_BG, initial_entropy=initial_entropy)
