"""Sample completions from the policy's current weights. `load_sampler` chooses the sampler by the recipe."""

from __future__ import annotations

from collections.abc import Callable

from gtpo_cli.generation.sampler import Sampler, SamplingParams
from gtpo_cli.models.engines import Engines, choose_engines
from gtpo_cli.models.policy import Policy
from gtpo_cli.recipe.schema import Recipe

__all__ = ["Sampler", "SamplingParams", "load_sampler"]


def load_sampler(
    policy: Policy, recipe: Recipe, engines: Engines | None = None, *, warn: Callable[[str], None] | None = None
) -> Sampler:
    """Return the recipe's sampler with the policy's current weights.

    `engines`: the ones that loaded the policy; by default they are chosen here. `warn` gets a sentence if memory runs
    out and fewer completions are sampled at a time. Raises ModelError and GenerationError with the remedy.
    """
    from gtpo_cli.generation.transformers_sampler import TransformersSampler
    from gtpo_cli.models.transformers_policy import TransformersPolicy

    if (engines or choose_engines(recipe)).engine == "vllm":
        from gtpo_cli.generation.vllm_sampler import load_vllm_sampler

        return load_vllm_sampler(policy, recipe)
    assert isinstance(policy, TransformersPolicy)
    return TransformersSampler(policy, warn=warn)
