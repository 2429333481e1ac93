"""Samplers turn prompts into completions with the policy's current weights: their protocol and the choice of one, and
the way from problems to graded groups to rows of tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import torch

from gtpo_cli.data import Prompt
from gtpo_cli.errors import GenerationError
from gtpo_cli.job import Job
from gtpo_cli.objective.batch import SampledRows, pad_rows, real_places
from gtpo_cli.policy.policy import Policy
from gtpo_cli.types import Completion, Group, Problem


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. top_p in (0, 1], 1 = off; equal seeds repeat a call.

    temperature > 0, or 0: greedy, the likeliest token. Greedy completions of a prompt are equal, so n is 1; their
    log-probabilities are those at temperature 1.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_completion_tokens: int = 1500
    seed: int = 0


OnCompletion = Callable[[int, Completion], None]


class Sampler(Protocol):
    """Samples completions; it never sees rewards."""

    def sample(
        self, prompts: Sequence[Sequence[int]], n: int, params: SamplingParams, *, ended: OnCompletion | None = None
    ) -> list[list[Completion]]:
        """Sample n completions of each prompt (token ids), in order. Raises GenerationError.

        `ended` is called with each completion and its prompt's number, at the latest before `sample` returns. If memory
        runs out and sampling starts over, some completions are reported again.
        """
        ...

    def sample_blocks(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        *,
        size: int,
        seeds: Sequence[int],
        wanted: Collection[int],
        ended: OnCompletion | None = None,
    ) -> Generator[tuple[int, list[Completion]], None, None]:
        """Yield each wanted prompt's number with its n completions, as they come.

        Block k has the prompts from k * `size` up to (k + 1) * `size`. Its completions are those of `sample` with the
        seed `seeds[k]`, whatever else is wanted (with vLLM up to rounding). A sampler that needs the whole block for
        that yields all of its prompts, block by block. `ended`: as in `sample`. Raises GenerationError.

        Closing the generator drops unfinished completions.
        """
        ...

    def sync(self, policy: Policy) -> None:
        """Update the sampler to the policy's current weights. Called before each generation."""
        ...

    def rehearse(self, prompt_tokens: int, n: int, params: SamplingParams) -> None:
        """Allocate the memory for n completions of the longest prompt and length, and free it.

        So memory fails, or the number of rows at once is lowered, before the run and not in its middle.
        """
        ...


def room_after(
    prompt: Sequence[int], max_seq_length: int, *, name: str = "the prompt", remedy: str = "ask a shorter question"
) -> int:
    """Return how many tokens fit after a prompt. Raises GenerationError for an empty prompt, or without room."""
    if not prompt:
        raise GenerationError(f"{name} is empty: a model needs at least one token to continue")
    if len(prompt) >= max_seq_length:
        raise GenerationError(
            f"{name} has {len(prompt)} tokens, which leaves no room within {max_seq_length}; {remedy}"
        )
    return max_seq_length - len(prompt)


def check_prompts(prompts: Sequence[Sequence[int]], max_seq_length: int) -> None:
    """Raise GenerationError for an empty prompt, or without room for a completion."""
    remedy = "lower data.max_prompt_tokens or raise model.max_seq_length"
    for index, prompt in enumerate(prompts):
        room_after(prompt, max_seq_length, name=f"prompt {index}", remedy=remedy)


Warn = Callable[[str], None]


def _transformers(policy: Policy, job: Job, warn: Warn | None) -> Sampler:
    from gtpo_cli.policy.transformers_policy import TransformersPolicy
    from gtpo_cli.policy.transformers_sampler import TransformersSampler

    assert isinstance(policy, TransformersPolicy)
    sampler = TransformersSampler(policy, warn=warn)
    sampler.check()
    return sampler


def _vllm(policy: Policy, job: Job, warn: Warn | None) -> Sampler:
    from gtpo_cli.policy.vllm_sampler import load_vllm_sampler

    return load_vllm_sampler(policy, job)


SAMPLERS: dict[str, Callable[[Policy, Job, Warn | None], Sampler]] = {"transformers": _transformers, "vllm": _vllm}


def load_sampler(policy: Policy, job: Job, *, warn: Warn | None = None) -> Sampler:
    """Return the job's sampler with the policy's current weights.

    `warn` gets a sentence if memory runs out and fewer completions are sampled at a time. Raises ModelError and
    GenerationError with the remedy.
    """
    return SAMPLERS[job.engines.engine](policy, job, warn)


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
