"""Samplers: completions from the policy's current weights. `load_sampler` chooses by the recipe."""

from __future__ import annotations

from gtpo_cli.generation.sampler import Sampler, SamplingParams
from gtpo_cli.models.policy import Policy

__all__ = ["Sampler", "SamplingParams", "load_sampler"]


def load_sampler(policy: Policy) -> Sampler:
    """The sampler that goes with a policy."""
    from gtpo_cli.generation.transformers_sampler import TransformersSampler
    from gtpo_cli.models.transformers_policy import TransformersPolicy

    assert isinstance(policy, TransformersPolicy)
    return TransformersSampler(policy)
