"""Ask one model many questions, and stream each answer."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from gtpo_cli.data import PromptEncoder
from gtpo_cli.evaluation.loading import Subject, load_frozen
from gtpo_cli.policy.sampler import SamplingParams
from gtpo_cli.policy.stream import stream_text
from gtpo_cli.seeds import derive_seed
from gtpo_cli.types import Completion, Turn


class Session:
    """Answers questions with a model on transformers.

    Each answer has its own seed, from `seed` and its number, so a repeated question gets another answer. Raises
    ModelError, CheckpointError.
    """

    def __init__(self, subject: Subject, params: SamplingParams, *, seed: int) -> None:
        self._policy = load_frozen(subject)
        self._encoder = PromptEncoder(self._policy.tokenizer, subject.job.recipe.data.system_prompt)
        self._params, self._seed, self._answered = params, seed, 0

    @property
    def context(self) -> int:
        """The limit on tokens of question and answer together."""
        return self._policy.max_seq_length

    def prompt(self, question: str) -> str | tuple[Turn, ...]:
        """Return the question's prompt as in `Problem.prompt`."""
        return self._encoder.prompt(question)

    def answer(self, question: str) -> Generator[str, None, Completion]:
        """Yield the answer's text as it comes; the completion is the generator's return value.

        Raises GenerationError if the question is too long.
        """
        prompt = self._encoder.encode(question, at_most=self.context)
        params = replace(self._params, seed=derive_seed(self._seed, "generate", self._answered))
        self._answered += 1
        return stream_text(self._policy, prompt, params)
