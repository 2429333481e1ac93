"""A training step of gtpo's own loop on a small random model, for engines that must agree with it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gtpo_cli.data import Prompt
from gtpo_cli.training.generations import MorePrompts, StepPrompts, sample_steps
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.step import StepParts, StepRows, train_step
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Completion, Problem

PROMPTS = [
    (Problem("a", "1+1", "2"), (1, 4, 9, 80, 9, 5)),
    (Problem("b", "12-4", "8"), (1, 4, 9, 10, 82, 12, 5)),
    (Problem("c", "7", "7"), (1, 4, 15, 5)),
]
INITIAL_ENTROPY = 0.5


def recorded_gradients(updater: Updater) -> list[list[torch.Tensor]]:
    """A list that gets the gradients of each update from now on, clipped: afterwards they are freed."""
    recorded: list[list[torch.Tensor]] = []
    groups = updater.optimizer.param_groups

    def record(*_: object) -> None:
        recorded.append([p.grad.clone() for group in groups for p in group["params"]])

    updater.optimizer.register_step_pre_hook(record)
    return recorded


def whole_step(
    parts: StepParts,
    prompts: Sequence[Prompt],
    *,
    seed: int,
    clock: Stopwatch,
    more: MorePrompts | None = None,
) -> StepRows:
    """A generation of one step, and the step."""
    (samples,) = sample_steps(parts, [StepPrompts(prompts, seed, more)], clock=clock)
    return train_step(parts, samples, clock=clock)


def letters(problem: Problem, completion: Completion) -> float:
    """A user reward: how many of the first four characters are letters; so groups have ties, and shared tokens."""
    return float(sum(character.isalpha() for character in completion.text[:4]) // 2)
