"""Policies: the models in training. `load_policy` loads the recipe's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gtpo_cli.errors import ModelError
from gtpo_cli.models.engines import Engines, choose_engines
from gtpo_cli.models.files import ModelFiles, read_model
from gtpo_cli.models.policy import Policy
from gtpo_cli.recipe.schema import Recipe

__all__ = ["Engines", "ModelFiles", "Policy", "choose_engines", "load_policy", "read_model"]


def load_policy(
    recipe: Recipe,
    *,
    engines: Engines | None = None,
    files: ModelFiles | None = None,
    with_engine: bool = True,
    trains: bool = True,
    start: Path | None = None,
) -> Policy:
    """Load the recipe's model with its adapter. Raises ModelError with the remedy.

    `engines`: the libraries to use; by default `choose_engines` decides. `files`: the model's configuration and
    tokenizer, if they were read before.

    `start`: weights that `Policy.save` wrote, an adapter or the whole model, to start training from. They are part of
    the reference model of a KL term.

    `with_engine`: start the engine that shares the policy's weights, if the recipe uses one; False if nothing will be
    sampled. `trains`: keep trained weights in float32 for any computation type; False if they are only measured.
    """
    whole = start is not None and (start / "config.json").is_file()
    if whole or files is None:
        files = read_model(recipe.model, str(start) if whole else None)
    settings: dict[str, Any] = {
        "files": files,
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
