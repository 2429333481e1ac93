"""The completions of one optimiser step as a flat list of rows; `Rows.by_group` shows them in their groups.

Axes: B prompts, G completions of one prompt, N = B G rows, P prompt tokens, T completion tokens. Both P and T are
right-padded. Only the masks tell real tokens from padding, since a pad id may equal a real token's id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Literal, Self

import torch
from torch import Tensor

Unit = Literal["completions", "tokens"]


@dataclass(slots=True, eq=False)
class Rows:
    """A flat list of completions, the input of a policy. `rows[index]` is a micro-batch of them.

    prompt_ids_BP, prompt_mask_BP: int64, bool. Each prompt occurs once.
    prompt_N: int64, the prompt of each row.
    ids_NT, mask_NT: int64, bool. Completion tokens; real ones are contiguous from position 0.

    A subclass may add fields. Indexing selects from those that are tensors, (N) or (N, T), and keeps the others.
    """

    prompt_ids_BP: Tensor
    prompt_mask_BP: Tensor
    prompt_N: Tensor
    ids_NT: Tensor
    mask_NT: Tensor

    def __len__(self) -> int:
        return len(self.prompt_N)

    def __getitem__(self, index: Tensor) -> Self:
        """Select rows by number (int64) with their prompts, trimmed to the longest."""
        prompts, prompt_n = torch.unique(self.prompt_N[index], return_inverse=True)
        prompt_mask = self.prompt_mask_BP[prompts]
        P, T = int(prompt_mask.sum(dim=1).max()), int(self.mask_NT[index].sum(dim=1).max())
        chosen = {"prompt_ids_BP": self.prompt_ids_BP[prompts, :P], "prompt_mask_BP": prompt_mask[:, :P]}
        chosen["prompt_N"] = prompt_n
        for field in fields(self):
            values = getattr(self, field.name)
            if field.name not in chosen and isinstance(values, Tensor):
                chosen[field.name] = values[index] if values.ndim == 1 else values[index, :T]
        return replace(self, **chosen)

    def by_group(self, values: Tensor) -> Tensor:
        """Reshape values of all rows, (N) or (N, T), to (B, G) or (B, G, T): G rows of each prompt stand together."""
        B = len(self.prompt_ids_BP)
        return values.view(B, len(values) // B, *values.shape[1:])

    def write(self, index: Tensor, **values: Tensor) -> None:
        """Write values for `self[index]`, (n) or (n, T of these rows), into the fields of these names."""
        for name, new in values.items():
            field = getattr(self, name)
            if new.ndim == 1:
                field[index] = new.to(field.dtype)
            else:
                field[index, : new.shape[1]] = new.to(field.dtype)

    def size(self, unit: Unit) -> int:
        """Count the completions, or the tokens with the prompt repeated for each completion."""
        if unit == "completions":
            return len(self)
        return int(self.mask_NT.sum() + self.prompt_mask_BP.sum(dim=1)[self.prompt_N].sum())

    def split(
        self, limit: int, *, unit: Unit = "completions", packed: bool = True, chosen_N: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Split into micro-batches of at most `limit` completions or tokens, and yield the sorted row numbers of each.

        A completion longer than `limit` gets its own micro-batch. An empty one is in none, nor is one outside
        `chosen_N` (bool). With `packed` a micro-batch becomes one sequence that holds each prompt once, so the rows of
        a prompt stay together. Otherwise each completion follows its own prompt, padded to the longest, so rows of
        similar length go together. The longest come first.
        """
        length_N = self.mask_NT.sum(dim=1)
        taken_N = length_N > 0 if chosen_N is None else (length_N > 0) & chosen_N
        rows: list[int] = taken_N.nonzero()[:, 0].tolist()
        length, prompt_of = length_N.tolist(), self.prompt_N.tolist()
        prompt_length = self.prompt_mask_BP.sum(dim=1).tolist()
        if packed:
            longest: dict[int, int] = {}
            for row in rows:
                longest[prompt_of[row]] = max(longest.get(prompt_of[row], 0), length[row])
            rows.sort(key=lambda row: (-longest[prompt_of[row]], prompt_of[row], -length[row]))
        else:
            rows.sort(key=lambda row: -prompt_length[prompt_of[row]] - length[row])
        current: list[int] = []
        used = 0

        def cost(row: int) -> int:
            if unit == "completions":
                return 1
            if packed:
                new_prompt = not current or prompt_of[current[-1]] != prompt_of[row]
                return int(length[row] + (prompt_length[prompt_of[row]] if new_prompt else 0))
            widest = current[0] if current else row
            return int(prompt_length[prompt_of[widest]] + length[widest])

        def numbers() -> Tensor:
            return torch.tensor(sorted(current), device=self.prompt_N.device)

        for row in rows:
            if current and used + cost(row) > limit:
                yield numbers()
                current, used = [], 0
            used += cost(row)
            current.append(row)
        if current:
            yield numbers()


@dataclass(slots=True, eq=False)
class SampledRows(Rows):
    """Rows of groups of one size, as they were sampled and scored.

    sampled_NT: float32, nats, as the sampler reported them; 0 at padding. rewards_N: float64. truncated_N: bool, True
    if the completion has no end-of-sequence token.
    """

    sampled_NT: Tensor
    rewards_N: Tensor
    truncated_N: Tensor


def pad_rows(rows: list[list[int]] | list[list[float]], *, value: float, dtype: torch.dtype) -> Tensor:
    """Right-pad rows of numbers to one width (at least 1)."""
    real = real_places(rows)
    padded = torch.full(real.shape, value, dtype=dtype)
    return padded.masked_scatter(real, torch.tensor(list(chain.from_iterable(rows)), dtype=dtype))


def real_places(rows: list[list[int]] | list[list[float]]) -> Tensor:
    """Return the mask of the padded rows: True at real values, False at padding."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    width = max(1, int(lengths.max())) if rows else 1
    return torch.arange(width) < lengths[:, None]
