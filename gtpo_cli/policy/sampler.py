"""Samplers turn prompts into completions with the policy's current weights: their protocol, and the choice of one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gtpo_cli.errors import GenerationError
from gtpo_cli.job import Job
from gtpo_cli.policy.policy import Policy
from gtpo_cli.types import Completion


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
    return TransformersSampler(policy, warn=warn)


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
