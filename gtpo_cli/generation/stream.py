"""One completion as it is written: what a person reads while the model samples.

It samples by the same code as the sampler, so that what is read is drawn from what was trained and evaluated.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch

from gtpo_cli.generation.sampler import SamplingParams, room_behind
from gtpo_cli.generation.transformers_sampler import chooser, open_decoder, uniform
from gtpo_cli.models.policy import Policy
from gtpo_cli.models.transformers_policy import TransformersPolicy
from gtpo_cli.types import Completion

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what tokenizers decode the first bytes of a character to


@torch.no_grad()
def stream_text(
    policy: Policy, prompt_ids: Sequence[int], params: SamplingParams, *, greedy: bool = False
) -> Generator[str, None, Completion]:
    """Yield pieces of decoded text as tokens come, and return the completion (the generator's return value).

    `greedy` takes the likeliest token each time; temperature then only scales the log-probabilities. The same seed
    repeats a completion; no global random state is touched. Closing the generator ends it at once.
    Raises GenerationError for a prompt that leaves no room, and for weights that are not finite.
    """
    assert isinstance(policy, TransformersPolicy)
    limit = min(room_behind(prompt_ids, policy.max_seq_length), params.max_completion_tokens)
    generator = torch.Generator(device=policy.device).manual_seed(params.seed)
    choose = chooser(params, greedy=greedy)
    policy.model.eval()
    decoder = open_decoder(policy, [prompt_ids], 1)
    pieces = TextPieces(policy.tokenizer)
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
    text = policy.tokenizer.decode(ids, skip_special_tokens=True)
    return Completion(tuple(ids), tuple(logprobs), "stop" if ids[-1] in policy.eos_token_ids else "length", text)


class TextPieces:
    """Token ids, one at a time, to the text that each of them makes certain.

    A character may be spread over several tokens, and a token's text may depend on the one before it (a space that is
    dropped at the start of a text), so what is decoded is a window: the tokens of the last piece and all after it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._given: list[int] = []  # the tokens of the last piece
        self._open: list[int] = []  # tokens after it, whose text is not certain yet

    def add(self, token_id: int) -> str:
        """The text that became certain with this token; "" for a special token or within a character."""
        self._open.append(token_id)
        piece = self.rest()
        if piece.endswith(_INCOMPLETE):
            return ""
        if piece:
            self._given, self._open = self._open, []
        return piece

    def rest(self) -> str:
        """The text of tokens that no piece held yet: after the last token, an incomplete character."""
        return self._decode(self._given + self._open)[len(self._decode(self._given)) :]

    def _decode(self, ids: list[int]) -> str:
        # Cleaning up would take back spaces that were given out already.
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
