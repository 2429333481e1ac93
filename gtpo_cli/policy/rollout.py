"""From problems to groups of completions to tensors. In between a `Scorer` adds the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing

import torch

from gtpo_cli.data import Prompt
from gtpo_cli.objective.batch import SampledRows, pad_rows, real_places
from gtpo_cli.policy.sampler import OnCompletion, Sampler, SamplingParams
from gtpo_cli.types import Completion, Group, Problem


def sample(
    sampler: Sampler,
    prompts: Sequence[Prompt],
    group_size: int,
    params: SamplingParams,
    *,
    ended: Callable[[Problem, Completion], None] | None = None,
) -> list[Group]:
    """Sample one group of `group_size` completions for each prompt, in order. `ended` is called with each finished one.

    Raises GenerationError.
    """
    notify = _with_problems(prompts, ended)
    completions = sampler.sample([ids for _, ids in prompts], group_size, params, ended=notify)
    return [Group(problem, ids, tuple(group)) for (problem, ids), group in zip(prompts, completions, strict=True)]


def _with_problems(
    prompts: Sequence[Prompt], ended: Callable[[Problem, Completion], None] | None
) -> OnCompletion | None:
    return None if ended is None else lambda number, completion: ended(prompts[number][0], completion)


def sample_blocks(
    sampler: Sampler,
    prompts: Sequence[Prompt],
    group_size: int,
    params: SamplingParams,
    *,
    size: int,
    seeds: Sequence[int],
    wanted: Collection[int] | None = None,
    ended: Callable[[Problem, Completion], None] | None = None,
) -> Generator[tuple[int, Group], None, None]:
    """Yield the groups of the wanted prompts (default: all) with the prompts' numbers as they finish: see `Sampler`.
    `ended`: as in `sample`."""
    wanted = range(len(prompts)) if wanted is None else wanted
    ids = [ids for _, ids in prompts]
    blocks = sampler.sample_blocks(
        ids, group_size, params, size=size, seeds=seeds, wanted=wanted, ended=_with_problems(prompts, ended)
    )
    with closing(blocks) as sampled:
        for number, completions in sampled:
            problem, prompt_ids = prompts[number]
            yield number, Group(problem, prompt_ids, tuple(completions))


def collate(groups: Sequence[Group], *, device: torch.device | str = "cpu") -> SampledRows:
    """Right-pad prompts and completions of groups of one size: row b G + g is completion g of group b.

    Groups without verdicts get rewards of 0; the entropy probe and SFT do not read them. Only the masks tell real
    tokens from padding, since the padding value 0 may be a real token's id.
    """
    assert groups, "a step needs at least one group"
    G = len(groups[0].completions)
    assert all(len(group.completions) == G and len(group.verdicts) in (0, G) for group in groups), "unequal groups"
    completions = [completion for group in groups for completion in group.completions]
    prompts = [list(group.prompt_ids) for group in groups]
    tokens = [list(completion.token_ids) for completion in completions]
    logprobs = [list(completion.logprobs) for completion in completions]
    rewards = [reward for group in groups for reward in [verdict.reward for verdict in group.verdicts] or [0.0] * G]
    return SampledRows(
        prompt_ids_BP=pad_rows(prompts, value=0, dtype=torch.long).to(device),
        prompt_mask_BP=real_places(prompts).to(device),
        prompt_N=torch.arange(len(groups), device=device).repeat_interleave(G),
        ids_NT=pad_rows(tokens, value=0, dtype=torch.long).to(device),
        mask_NT=real_places(tokens).to(device),
        sampled_NT=pad_rows(logprobs, value=0.0, dtype=torch.float32).to(device),
        rewards_N=torch.tensor(rewards, dtype=torch.float64, device=device),
        truncated_N=torch.tensor([completion.truncated for completion in completions], device=device),
    )
