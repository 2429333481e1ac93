"""The switches of the loss, from a recipe: `objective/` knows no recipe."""

from __future__ import annotations

from gtpo_cli.objective import Method
from gtpo_cli.recipe.schema import ObjectiveRecipe


def method_of(objective: ObjectiveRecipe, *, max_completion_tokens: int) -> Method:
    """Return the arguments of the objective's functions. `max_completion_tokens`: the divisor of `average: budget`."""
    conflict, clip, by_weight = objective.conflict, objective.clip, objective.ratio == "weight"
    return Method(
        advantage_scale=objective.advantage_scale,
        baseline=objective.baseline,
        alignment="prefix" if conflict.alignment == "prefix" else "position",
        span="all" if conflict.alignment == "anywhere" else "ends",
        positive_weight=conflict.positive_weight if conflict.enabled else 1.0,
        negative_weight=conflict.negative_weight if conflict.enabled else 1.0,
        filter=objective.filter.enabled,
        threshold=objective.filter.threshold,
        only_negative=objective.filter.only_negative,
        entropy_coef=objective.entropy_coef,
        kl_coef=objective.kl_coef,
        ratio="sequence" if objective.ratio == "sequence" else "token",
        clip=(clip.low, clip.high),
        clip_target="weight" if by_weight else "objective",
        average=max_completion_tokens if objective.average == "budget" else objective.average,
    )
