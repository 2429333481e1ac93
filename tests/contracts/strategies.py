"""Hypothesis strategies: a step of ragged groups as plain lists, and the padded tensors that the library gets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

# The machine decides how long an example takes, not the code: no deadline.
checked = settings(deadline=None, max_examples=50)

REWARDS = (0.0, 1.0, 10.0, 11.0, 20.0)  # what format + accuracy can give


@dataclass(frozen=True)
class Step:
    """`completions[b][i]` are the token ids of one completion; `padding` is what stands behind it in the tensors."""

    completions: list[list[list[int]]]
    rewards: list[list[float]]
    padding: int
    extra_width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        longest = max(len(tokens) for group in self.completions for tokens in group)
        return len(self.completions), len(self.completions[0]), longest + self.extra_width

    @property
    def ids(self) -> Tensor:
        return self.padded(self.completions, value=self.padding, dtype=torch.long)

    @property
    def mask(self) -> Tensor:
        return self.padded([[[True] * len(o) for o in group] for group in self.completions], value=False)

    def padded(self, ragged: list[list[list[float]]], *, value: float, dtype: torch.dtype | None = None) -> Tensor:
        """(B, G, T) of a ragged nested list."""
        width = self.shape[2]
        rows = [[list(row) + [value] * (width - len(row)) for row in group] for group in ragged]
        kind = dtype or (torch.bool if isinstance(value, bool) else torch.float64)
        return torch.tensor(rows, dtype=kind).view(self.shape)

    def ragged(self, values_BGT: Tensor) -> list[list[list[float]]]:
        """A (B, G, T) tensor without its padding."""
        return [
            [values_BGT[b, i, : len(tokens)].tolist() for i, tokens in enumerate(group)]
            for b, group in enumerate(self.completions)
        ]


@st.composite
def steps(draw: st.DrawFn, *, max_groups: int = 2, max_group_size: int = 6, vocabulary: int = 4) -> Step:
    """Groups with shared beginnings and ends, so that runs are long and often overlap, or nothing in common at all."""
    token = st.integers(0, vocabulary - 1)
    B, G = draw(st.integers(1, max_groups)), draw(st.integers(1, max_group_size))
    groups = []
    for _ in range(B):
        stem = draw(st.lists(token, max_size=5))
        group = []
        for _ in range(G):
            head, tail = draw(st.integers(0, len(stem))), draw(st.integers(0, len(stem)))
            middle = draw(st.lists(token, max_size=3))
            group.append(stem[:head] + middle + stem[tail:])  # may be empty; a truncated one has lost its tail
        groups.append(group)
    return Step(
        completions=groups,
        rewards=[[draw(st.sampled_from(REWARDS)) for _ in range(G)] for _ in range(B)],
        padding=draw(token),
        extra_width=draw(st.integers(0, 2)),
    )


def per_token(step: Step, values: st.SearchStrategy[float]) -> st.SearchStrategy[list[list[list[float]]]]:
    """One value for each real token of the step."""
    return st.tuples(
        *(st.tuples(*(st.lists(values, min_size=len(o), max_size=len(o)) for o in group)) for group in step.completions)
    ).map(lambda groups: [list(group) for group in groups])


def per_completion(step: Step, values: st.SearchStrategy[float]) -> st.SearchStrategy[list[list[float]]]:
    """One value for each completion of the step."""
    B, G, _ = step.shape
    row = st.lists(values, min_size=G, max_size=G)
    return st.lists(row, min_size=B, max_size=B)
