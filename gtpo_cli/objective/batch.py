"""TokenBatch: the completions of one optimiser step as rectangular tensors, and how it is cut into micro-batches.

Axes: B prompts, G completions of one prompt, P prompt tokens, T completion tokens. Both P and T are right-padded; only
the masks say what is real (a pad id may equal a real token's id).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

Unit = Literal["completions", "tokens"]


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

    def split(
        self, limit: int, *, unit: Unit = "completions", packed: bool = True, only_BG: Tensor | None = None
    ) -> Iterator[MicroBatch]:
        """Cut into micro-batches of at most `limit` completions or tokens, or of one completion that is longer.

        `only_BG` (bool) leaves the others out; an empty completion is in none. `packed`: a micro-batch will be one row
        in which each prompt stands once, so a group stays together; else each completion will be a row of its own with
        its prompt, padded to the longest, so rows of like length go together. The longest come first.
        """
        lengths_BG = self.lengths_BG
        chosen_BG = lengths_BG > 0 if only_BG is None else (lengths_BG > 0) & only_BG
        longest_B = (lengths_BG * chosen_BG).amax(dim=1).tolist()
        prompt_B, length_BG = self.prompt_mask_BP.sum(dim=1).tolist(), lengths_BG.tolist()
        rows: list[tuple[int, int]] = [(b, g) for b, g in chosen_BG.nonzero().tolist()]
        if packed:
            rows.sort(key=lambda row: (-longest_B[row[0]], row[0], -length_BG[row[0]][row[1]]))
        else:
            rows.sort(key=lambda row: -prompt_B[row[0]] - length_BG[row[0]][row[1]])
        current: list[tuple[int, int]] = []
        used = 0

        def cost(b: int, g: int) -> int:
            if unit == "completions":
                return 1
            if packed:
                return int(length_BG[b][g] + (0 if current and current[-1][0] == b else prompt_B[b]))
            widest_b, widest_g = current[0] if current else (b, g)
            return int(prompt_B[widest_b] + length_BG[widest_b][widest_g])

        for b, g in rows:
            if current and used + cost(b, g) > limit:
                yield self._micro_batch(current)
                current, used = [], 0
            used += cost(b, g)
            current.append((b, g))
        if current:
            yield self._micro_batch(current)

    def _micro_batch(self, rows: list[tuple[int, int]]) -> MicroBatch:
        """The groups of these completions, with the other completions emptied, trimmed to the longest of them."""
        device, real_BG = self.completion_ids_BGT.device, self.lengths_BG > 0
        groups = sorted({b for b, _ in rows})
        if len(rows) == int(real_BG.sum()) and len(groups) == self.shape[0]:  # all there are: nothing to leave out
            return MicroBatch(torch.arange(self.shape[0], device=device), real_BG, self)
        chosen_BG = torch.zeros(self.shape, dtype=torch.bool, device=device)
        b, g = torch.tensor(rows, device=device).T
        chosen_BG[b, g] = True
        index = torch.tensor(groups, device=device)
        P = int(self.prompt_mask_BP[index].sum(dim=-1).max())
        T = int(self.lengths_BG[b, g].max())
        batch = TokenBatch(
            prompt_ids_BP=self.prompt_ids_BP[index, :P],
            prompt_mask_BP=self.prompt_mask_BP[index, :P],
            completion_ids_BGT=self.completion_ids_BGT[index, :, :T],
            completion_mask_BGT=self.completion_mask_BGT[index, :, :T] & chosen_BG[index, :, None],
            sampled_logprobs_BGT=self.sampled_logprobs_BGT[index, :, :T],
            rewards_BG=self.rewards_BG[index],
            truncated_BG=self.truncated_BG[index],
        )
        return MicroBatch(index, chosen_BG[index], batch)


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Some completions of a step. `groups` (int64) says which groups they are of, `rows_BG` which of these groups'
    completions they are; `batch` holds their tokens, and nothing of the groups' other completions but their places."""

    groups: Tensor
    rows_BG: Tensor
    batch: TokenBatch

    def take(self, values: Tensor) -> Tensor:
        """These groups' part of a (B, G) or (B, G, T) tensor of the step, trimmed as the batch is."""
        part = values[self.groups]
        return part if part.ndim == 2 else part[..., : self.batch.completion_ids_BGT.shape[-1]]

    def put(self, values: Tensor, into: Tensor) -> None:
        """Write what was computed for these completions, (b, G) or (b, G, T), into a tensor of the step."""
        chosen = self.rows_BG if values.ndim == 2 else self.batch.completion_mask_BGT
        part = into[self.groups]
        target = part if values.ndim == 2 else part[..., : values.shape[-1]]
        target[chosen] = values[chosen].to(into.dtype)
        into[self.groups] = part


def pad_rows(rows: list[list[int]] | list[list[float]], *, value: float, dtype: torch.dtype) -> Tensor:
    """Right-pad rows of numbers to one width (at least 1)."""
    real = real_places(rows)
    padded = torch.full(real.shape, value, dtype=dtype)
    return padded.masked_scatter(real, torch.tensor(list(chain.from_iterable(rows)), dtype=dtype))


def real_places(rows: list[list[int]] | list[list[float]]) -> Tensor:
    """Which places of the padded rows hold a number of theirs; bool."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    width = max(1, int(lengths.max())) if rows else 1
    return torch.arange(width) < lengths[:, None]
