"""Problems -> groups of completions."""

from __future__ import annotations

from collections.abc import Sequence

from gtpo_cli.generation.sampler import Sampler, SamplingParams
from gtpo_cli.types import Group, Problem

Prompt = tuple[Problem, tuple[int, ...]]  # a problem and its encoded prompt


def sample(sampler: Sampler, prompts: Sequence[Prompt], group_size: int, params: SamplingParams) -> list[Group]:
    """One group of `group_size` completions for each prompt, in order. Raises GenerationError."""
    completions = sampler.sample([ids for _, ids in prompts], group_size, params)
    return [Group(problem, ids, tuple(group)) for (problem, ids), group in zip(prompts, completions, strict=True)]
