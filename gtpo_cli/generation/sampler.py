"""The contract of a sampler: prompts in, completions out, from the policy's current weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gtpo_cli.errors import GenerationError
from gtpo_cli.models.policy import Policy
from gtpo_cli.types import Completion


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. temperature > 0; top_p in (0, 1], 1 = off; top_k >= 0, 0 = off; the same seed repeats a call."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_completion_tokens: int = 1500
    seed: int = 0


OnCompletion = Callable[[int, Completion], None]


class Sampler(Protocol):
    """A sampler never sees rewards."""

    def sample(
        self, prompts: Sequence[Sequence[int]], n: int, params: SamplingParams, *, ended: OnCompletion | None = None
    ) -> list[list[Completion]]:
        """n completions of each prompt (token ids), in order. Raises GenerationError.

        `ended` is told of each completion once it is there, with its prompt's number, at the latest before `sample`
        returns; of some more than once where memory ran out and sampling started over.
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
    ) -> Generator[tuple[int, list[Completion]], None, None]:
        """The n completions of each wanted prompt (by its number), with that number, as they come.

        Block k is the prompts from k * `size` up to (k + 1) * `size`. Its completions are those of `sample` with the
        seed `seeds[k]` instead of that of `params`, whatever else is wanted (with vLLM up to rounding). Where that
        takes the whole block, all of its prompts come, one block after another. Raises GenerationError.

        What is under way is given up when the generator is closed.
        """
        ...

    def sync(self, policy: Policy) -> None:
        """Make the sampler's weights the policy's current ones. Called before each generation."""
        ...

    def rehearse(self, prompt_tokens: int, n: int, params: SamplingParams) -> None:
        """Take the memory that n completions of the longest prompt at the longest length take, and give it back.

        So that memory fails, or the number of rows at once is lowered, before the run and not in its middle.
        """
        ...


def room_behind(
    prompt: Sequence[int], max_seq_length: int, *, name: str = "the prompt", remedy: str = "ask a shorter question"
) -> int:
    """How many tokens fit behind a prompt, at least 1. Raises GenerationError for one without tokens or room."""
    if not prompt:
        raise GenerationError(f"{name} is empty: a model needs at least one token to continue")
    if len(prompt) >= max_seq_length:
        raise GenerationError(
            f"{name} has {len(prompt)} tokens, which leaves no room within {max_seq_length}; {remedy}"
        )
    return max_seq_length - len(prompt)


def check_prompts(prompts: Sequence[Sequence[int]], max_seq_length: int) -> None:
    """Raise GenerationError for a prompt without tokens, or without room for a completion."""
    remedy = "lower data.max_prompt_tokens or raise model.max_seq_length"
    for index, prompt in enumerate(prompts):
        room_behind(prompt, max_seq_length, name=f"prompt {index}", remedy=remedy)
