"""Dropout has no place where probabilities are compared: reinforcement learning trains the network that samples.

Two forward passes with dropout are two random sub-networks: exp(ln pi - ln pi_old) is not 1 where nothing changed, and
<H>, which decides delta and c, is not that of the policy that sampled. So an adapter's dropout is refused outside SFT,
and what the model's own configuration asks for is switched off, as TRL's `disable_dropout` does.
"""

from __future__ import annotations

from typing import Any

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe.schema import Recipe


def check_dropout(recipe: Recipe) -> None:
    """Raise RecipeError for adapter dropout in a run that is not SFT."""
    lora = recipe.model.lora
    if recipe.objective.name != "sft" and lora is not None and lora.dropout > 0:
        raise RecipeError(
            f"model.lora.dropout: {lora.dropout:g} is for objective.name: sft alone; with {recipe.objective.name} each "
            "forward pass would be of another random sub-network, so that the ratio is not 1 where nothing changed and "
            "<H> is not that of the policy that sampled: set it to 0 (a run that has it goes on by gtpo train --from)"
        )


def active_dropout(model: Any) -> list[tuple[Any, str, float]]:
    """(module, attribute, probability) of every dropout of a model that is above 0: of layers, and of functions, whose
    modules keep it under a name such as `attention_dropout`, `layerdrop` or `resid_pdrop`."""
    return [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float)
        and 0.0 < value <= 1.0
        and ("drop" in name or (name == "p" and "Dropout" in type(module).__name__))
    ]


def switch_off_dropout(model: Any) -> float:
    """Set every dropout of a model to 0, for good; its configuration stays as it is. Returns the largest there was."""
    found = active_dropout(model)
    for module, name, _ in found:
        setattr(module, name, 0.0)
    return max((value for *_, value in found), default=0.0)
