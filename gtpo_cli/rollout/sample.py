"""Problems -> groups of completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gtpo_cli.data import Prompt
from gtpo_cli.generation.sampler import Sampler, SamplingParams
from gtpo_cli.types import Completion, Group, Problem


def sample(
    sampler: Sampler,
    prompts: Sequence[Prompt],
    group_size: int,
    params: SamplingParams,
    *,
    ended: Callable[[Problem, Completion], None] | None = None,
) -> list[Group]:
    """One group of `group_size` completions for each prompt, in order. `ended` is told of each one once it is there.

    Raises GenerationError.
    """
    tell = None if ended is None else lambda number, completion: ended(prompts[number][0], completion)
    completions = sampler.sample([ids for _, ids in prompts], group_size, params, ended=tell)
    return [Group(problem, ids, tuple(group)) for (problem, ids), group in zip(prompts, completions, strict=True)]
