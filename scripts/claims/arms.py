"""The arms of the third round: what each changes in a recipe, and in lambda, the weight of each token.

The controls are not for users, so they are here and not in gtpo: they stand between `group_terms` and the step.
Axes: B prompts, G completions of one prompt, T completion tokens (right-padded).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpo_cli.objective import GroupTerms, group_terms
from gtpo_cli.training import step

Weights = Callable[[Tensor, Tensor, Tensor, torch.Generator], Tensor]  # lambda, mask, A, generator -> lambda


class Arm(NamedTuple):
    """`words`: what the page calls it. `weights`: what it makes of lambda; None = leaves it."""

    words: str
    recipe: dict[str, Any]
    weights: Weights | None = None


def spread(weights_BGT: Tensor, mask_BGT: Tensor, _: Tensor, __: torch.Generator) -> Tensor:
    """The mean weight of each completion, at each of its tokens."""
    lengths_BG1 = mask_BGT.sum(dim=-1, keepdim=True).clamp(min=1)
    return ((weights_BGT * mask_BGT).sum(dim=-1, keepdim=True) / lengths_BG1).expand_as(weights_BGT)


def shuffled(weights_BGT: Tensor, mask_BGT: Tensor, _: Tensor, generator: torch.Generator) -> Tensor:
    """The weights of each completion at random places of it."""
    places = torch.rand(weights_BGT.shape, generator=generator).masked_fill(~mask_BGT, 2.0).argsort(dim=-1)
    return weights_BGT.gather(-1, places)  # padding sorts last, to itself


def positives_only(weights_BGT: Tensor, _: Tensor, advantages_BG: Tensor, __: torch.Generator) -> Tensor:
    """Nothing for completions below their group's mean."""
    return weights_BGT * (advantages_BG > 0)[..., None]


_CORRECTED = {"objective.name": "grpo", "objective.conflict.enabled": True}
ARMS = {
    "grpo": Arm("GRPO", {"objective.name": "grpo"}),
    "positives": Arm("only right completions", {"objective.name": "grpo"}, positives_only),
    "correction": Arm("conflict correction", _CORRECTED),
    "uniform": Arm("same weight, spread evenly", _CORRECTED, spread),
    "shuffled": Arm("same weights, random tokens", _CORRECTED, shuffled),
    "gtpo": Arm("GTPO", {"objective.name": "gtpo"}),
    "dapo": Arm("DAPO", {"objective.name": "dapo"}),
    # the paper's other comparisons
    "grpo_kl": Arm("GRPO with beta 0.04", {"objective.name": "grpo", "objective.kl_coef": 0.04}),
    "sft": Arm("SFT", {"objective.name": "sft", "rollout.prompts_per_step": 64}),  # as many completions a step,
}


@contextmanager
def in_force(arm: Arm, seed: int) -> Iterator[None]:
    """While this is open, a step of gtpo's loop in this process weighs tokens as the arm says."""
    change, generator = arm.weights, torch.Generator().manual_seed(seed)
    if change is None:
        yield
        return

    def changed(*arguments: Any, completion_mask_BGT: Tensor, **others: Any) -> GroupTerms:
        terms = group_terms(*arguments, completion_mask_BGT=completion_mask_BGT, **others)
        weights_BGT = change(terms.weights_BGT, completion_mask_BGT.bool(), terms.advantages_BG, generator)
        return terms._replace(weights_BGT=weights_BGT)

    step.group_terms = changed  # type: ignore[attr-defined]
    try:
        yield
    finally:
        step.group_terms = group_terms  # type: ignore[attr-defined]
