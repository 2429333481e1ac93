"""Ask one model many questions, and stream each answer."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import replace
from typing import Any

import torch

from gtpo_cli.data.prompts import completion_text
from gtpo_cli.evaluation.loading import Subject, load_frozen
from gtpo_cli.policy.policy import Policy
from gtpo_cli.policy.sampler import SamplingParams, room_after
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import chooser, open_decoder, uniform
from gtpo_cli.seeds import derive_seed
from gtpo_cli.types import Completion, Problem

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # decoded from an incomplete character


@torch.no_grad()
def stream_text(policy: Policy, prompt_ids: Sequence[int], params: SamplingParams) -> Generator[str, None, Completion]:
    """Yield pieces of decoded text as tokens come, and return the completion (the generator's return value).

    The same seed repeats a completion; the global random state does not change. Closing the generator ends it at once.
    Raises GenerationError for a prompt that leaves no room, and for weights that are not finite.
    """
    assert isinstance(policy, TransformersPolicy)
    limit = min(room_after(prompt_ids, policy.max_seq_length), params.max_completion_tokens)
    generator = torch.Generator(device=policy.device).manual_seed(params.seed)
    choose = chooser(params)
    policy.model.eval()
    decoder = open_decoder(policy, [prompt_ids], 1)
    pieces = TextPieces(policy.tokenizer, policy.eos_token_ids)
    ids: list[int] = []
    logprobs: list[float] = []
    while True:
        token, logp = choose(decoder.logits(), uniform(1, generator))
        ids.append(int(token))
        logprobs.append(float(logp))
        if piece := pieces.add(ids[-1]):
            yield piece
        if ids[-1] in policy.eos_token_ids or len(ids) == limit:
            break
        decoder.advance(token)
    if piece := pieces.rest():
        yield piece
    text = completion_text(policy.tokenizer, ids, policy.eos_token_ids)
    return Completion(tuple(ids), tuple(logprobs), "stop" if ids[-1] in policy.eos_token_ids else "length", text)


class TextPieces:
    """Turns token ids, one at a time, into pieces of text that later tokens cannot change.

    A character may span several tokens, and a token's text may depend on the one before it (a space is dropped at the
    start of a text). So a window is decoded: the tokens of the last piece and all after it.
    """

    def __init__(self, tokenizer: Any, ends: Collection[int]) -> None:
        self._tokenizer, self._ends = tokenizer, ends
        self._given: list[int] = []  # the tokens of the last piece
        self._open: list[int] = []  # later tokens, whose text may still change

    def add(self, token_id: int) -> str:
        """Add a token and return the text that is now final; "" for a special token or within a character."""
        self._open.append(token_id)
        piece = self.rest()
        if piece.endswith(_INCOMPLETE):
            return ""
        if piece:
            self._given, self._open = self._open, []
        return piece

    def rest(self) -> str:
        """Return the text of tokens that are in no piece yet. After the last token, this is an incomplete character."""
        return self._decode(self._given + self._open)[len(self._decode(self._given)) :]

    def _decode(self, ids: list[int]) -> str:
        return completion_text(self._tokenizer, ids, self._ends)


class Session:
    """Answers questions with a model on transformers.

    Each answer has its own seed, from `seed` and its number, so a repeated question gets another answer. Raises
    ModelError, CheckpointError.
    """

    def __init__(self, subject: Subject, params: SamplingParams, *, seed: int) -> None:
        self._policy = load_frozen(subject)
        self._encoder = subject.job.encoder
        self._params, self._seed, self._answered = params, seed, 0

    @property
    def context(self) -> int:
        """The limit on tokens of question and answer together."""
        return self._policy.max_seq_length

    def problem(self, question: str) -> Problem:
        """Return the question as a problem without a gold answer."""
        encoder = self._encoder
        return Problem("question", question, "", prompt=encoder.prompt(question), opened=encoder.opened)

    def answer(self, question: str) -> Generator[str, None, Completion]:
        """Yield the answer's text as it comes; the completion is the generator's return value.

        Raises GenerationError if the question is too long.
        """
        prompt = self._encoder.encode(question, at_most=self.context)
        params = replace(self._params, seed=derive_seed(self._seed, "generate", self._answered))
        self._answered += 1
        return stream_text(self._policy, prompt, params)
