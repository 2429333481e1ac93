"""Policies: the models that are trained. `load_policy` chooses by the recipe."""

from __future__ import annotations

from gtpo_cli.models.policy import Policy
from gtpo_cli.recipe.schema import Recipe

__all__ = ["Policy", "load_policy"]


def load_policy(recipe: Recipe) -> Policy:
    """Load the recipe's model with its adapter, ready to train. Raises ModelError with the remedy."""
    from gtpo_cli.models.tiny import resolve_name
    from gtpo_cli.models.transformers_policy import load_transformers_policy

    return load_transformers_policy(
        recipe.model,
        path=resolve_name(recipe.model.name),
        temperature=recipe.rollout.temperature,
        with_reference=recipe.objective.kl_coef > 0,
        seed=recipe.seed,
    )
