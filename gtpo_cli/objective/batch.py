"""TokenBatch: the completions of one optimiser step as rectangular tensors, and how it is cut into micro-batches.

Axes: B prompts, G completions of one prompt, P prompt tokens, T completion tokens. Both P and T are right-padded; only
the masks say what is real (a pad id may equal a real token's id).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """What the objective needs to know of a step. All tensors are on one device.

    prompt_ids_BP, prompt_mask_BP: int64, bool. The prompt of a group stands once.
    completion_ids_BGT, completion_mask_BGT: int64, bool. Real tokens are contiguous from position 0.
    sampled_logprobs_BGT: float32, nats, as the sampler reported them; 0 at padding.
    rewards_BG: float32. truncated_BG: bool, True where the completion has no end-of-sequence token.
    """

    prompt_ids_BP: Tensor
    prompt_mask_BP: Tensor
    completion_ids_BGT: Tensor
    completion_mask_BGT: Tensor
    sampled_logprobs_BGT: Tensor
    rewards_BG: Tensor
    truncated_BG: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(B, G)."""
        return self.completion_ids_BGT.shape[0], self.completion_ids_BGT.shape[1]

    @property
    def lengths_BG(self) -> Tensor:
        """|o_i|: completion tokens, int64."""
        return self.completion_mask_BGT.sum(dim=-1)

    def split(self, rows: int) -> Iterator[MicroBatch]:
        """Cut into blocks of at most `rows` completions: whole groups where a group fits, else slices of one group.

        Each block is trimmed to its own longest prompt and completion. `rows` >= 1.
        """
        B, G = self.shape
        groups, members = max(1, rows // G), min(rows, G)
        for b in range(0, B, groups):
            for g in range(0, G, members):
                index = (slice(b, min(b + groups, B)), slice(g, min(g + members, G)))
                yield MicroBatch(index, self._block(*index))

    def _block(self, b: slice, g: slice) -> TokenBatch:
        P = max(1, int(self.prompt_mask_BP[b].sum(dim=-1).max()))
        T = max(1, int(self.lengths_BG[b, g].max()))
        return TokenBatch(
            prompt_ids_BP=self.prompt_ids_BP[b, :P],
            prompt_mask_BP=self.prompt_mask_BP[b, :P],
            completion_ids_BGT=self.completion_ids_BGT[b, g, :T],
            completion_mask_BGT=self.completion_mask_BGT[b, g, :T],
            sampled_logprobs_BGT=self.sampled_logprobs_BGT[b, g, :T],
            rewards_BG=self.rewards_BG[b, g],
            truncated_BG=self.truncated_BG[b, g],
        )


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """A block of a step: `index` cuts any (B, G) tensor of the step to this block, `batch` holds its tokens."""

    index: tuple[slice, slice]
    batch: TokenBatch

    def take(self, values_BGT: Tensor) -> Tensor:
        """This block of a (B, G, T) tensor of the step, trimmed as the block is."""
        return values_BGT[self.index][..., : self.batch.completion_ids_BGT.shape[-1]]


def pad_rows(rows: list[list[int]] | list[list[float]], *, value: float, dtype: torch.dtype) -> Tensor:
    """Right-pad rows of numbers to one width (at least 1)."""
    width = max(1, *(len(row) for row in rows)) if rows else 1
    return torch.tensor([list(row) + [value] * (width - len(row)) for row in rows], dtype=dtype)
