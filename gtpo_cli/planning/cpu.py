"""Estimate RAM and minutes, as ranges, of a small model's run without a GPU, on one thread in float32.

The rates are those of SmolLM2-135M's step on one core (docs/benchmarks.md). A test compares the ranges with measured
runs of shipped recipes.
"""

from __future__ import annotations

from typing import NamedTuple

from gtpo_cli.models import Engines
from gtpo_cli.planning.cards import GIB
from gtpo_cli.planning.duration import training_operations
from gtpo_cli.planning.memory import CONTEXT, memory_of
from gtpo_cli.planning.open_keys import Machine, closed
from gtpo_cli.planning.shapes import ModelShape
from gtpo_cli.recipe import Recipe

PLAIN = Engines("transformers", "transformers", False)
PROCESS = 0.5 * GIB  # Python and its libraries
OTHER = 1.5  # actual over planned memory at most, since torch's allocator keeps freed memory
SAMPLING, TRAINING = 37e9, 110e9  # operations a second
BLOCK = 1e-3  # seconds of a block's small operations, for one token of all sequences
OFF = 2.0  # factor by which another core may be slower or faster


class CpuNeed(NamedTuple):
    """RAM in bytes and minutes, each as (least, most)."""

    ram: tuple[float, float]
    minutes: tuple[float, float]

    def __str__(self) -> str:
        ram, minutes = (f"{low:.2g} to {high:.2g}" for low, high in ([b / GIB for b in self.ram], self.minutes))
        return f"{minutes} min, {ram} GiB of RAM"


def cpu_need(
    recipe: Recipe, shape: ModelShape, *,
    steps: int, completions: int, prompt_tokens: int, longest_completion: int, mean_completion: int,
) -> CpuNeed:  # fmt: skip
    """Estimate the needs of a whole run of so many steps and completions."""
    recipe = closed(recipe, Machine(0.0, None, frozenset()), shape)
    memory = memory_of(recipe, shape, PLAIN, prompt_tokens=prompt_tokens, completion_tokens=longest_completion, gpu=0.0)
    taken = memory.peak - CONTEXT
    prompts = completions / recipe.completions_per_prompt
    tokens = completions * mean_completion + prompts * prompt_tokens
    seconds = tokens * training_operations(recipe, shape) / TRAINING
    if recipe.samples:
        seconds += tokens * 2 * shape.parameters / SAMPLING
        # For every step, as in rollout.steps_per_generation: 1, since this covers training's small operations too.
        seconds += steps * longest_completion * shape.layers * BLOCK
    return CpuNeed((PROCESS + taken, PROCESS + OTHER * taken), (seconds / 60 / OFF, seconds / 60 * OFF))
