"""Policies: the models in training. `load_policy` loads the recipe's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gtpo_cli.errors import ModelError
from gtpo_cli.models.engines import Engines, choose_engines
from gtpo_cli.models.policy import Policy
from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.recipe.schema import Recipe

__all__ = ["Engines", "Policy", "choose_engines", "load_policy", "load_tokenizer"]


def load_policy(
    recipe: Recipe,
    *,
    engines: Engines | None = None,
    with_engine: bool = True,
    trains: bool = True,
    start: Path | None = None,
) -> Policy:
    """Load the recipe's model with its adapter. Raises ModelError with the remedy.

    `engines`: the libraries to use; by default `choose_engines` decides.

    `start`: weights that `Policy.save` wrote, an adapter or the whole model, to start training from. They are part of
    the reference model of a KL term.

    `with_engine`: start the engine that shares the policy's weights, if the recipe uses one; False if nothing will be
    sampled. `trains`: keep trained weights in float32 for any computation type; False if they are only measured.
    """
    whole = start is not None and (start / "config.json").is_file()
    settings: dict[str, Any] = {
        "path": str(start) if whole else resolve_name(recipe.model.name),
        "temperature": recipe.rollout.temperature,
        "with_reference": recipe.objective.kl_coef > 0,
        "seed": recipe.seed,
        "trains": trains,
    }
    from gtpo_cli.models.transformers_policy import TransformersPolicy, load_transformers_policy

    if recipe.model.load_in_4bit == "auto":
        raise ModelError(
            "model.load_in_4bit: is still auto; call planning.open_keys.closed(recipe) to resolve it for this machine"
        )
    engines = engines or choose_engines(recipe)
    if engines.backend == "unsloth":
        from gtpo_cli.models.unsloth_policy import load_unsloth_policy

        engine = recipe.rollout if engines.shared and with_engine else None
        policy: TransformersPolicy = load_unsloth_policy(recipe.model, **settings, engine=engine)
    else:
        policy = load_transformers_policy(recipe.model, **settings)
    if start is not None and not whole:
        policy.start_from(start, as_reference=recipe.objective.kl_coef > 0)
    return policy


def load_tokenizer(recipe: Recipe) -> tuple[Any, int]:
    """Return the recipe's tokenizer and the most tokens of prompt and completion together, without loading weights.

    Raises ModelError with the remedy.
    """
    from gtpo_cli.models.loading import context_length, load_tokenizer

    path = resolve_name(recipe.model.name)
    return load_tokenizer(recipe.model, path), context_length(recipe.model, path)
