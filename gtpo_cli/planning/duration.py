"""How long a run takes on a GPU of a size: an estimate from two figures of data sheets.

One run was timed against it, on an H100: 27.5 s a step, estimated 26.6 (docs/benchmarks.md).

Sampling a token of each sequence reads all weights once; 4-bit weights are turned into 16 bits for it, which writes and
reads those too. Training multiplies each token with each weight in the forward pass, in the backward pass (twice where
the weights themselves train) and, with checkpointing, once more. Left out: attention, rewards, evaluation, checkpoints,
loading, compilation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gtpo_cli.models import Engines
from gtpo_cli.planning.cards import Card
from gtpo_cli.planning.memory import Memory, kv_bytes, number_bytes
from gtpo_cli.planning.shapes import ModelShape
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import ModelRecipe

READ = 0.6  # of the memory's bandwidth: an assumption
MULTIPLY = 0.35  # of the arithmetic: an assumption
LAUNCH = 1e-3  # seconds a block where no CUDA graph spares the launches (transformers): an assumption


@dataclass(frozen=True, slots=True)
class Hours:
    """Of a whole run, on the fastest and on the slowest of the cards of a size."""

    fastest: float
    slowest: float
    cards: tuple[str, ...]  # fastest first

    def __str__(self) -> str:
        low, high = _round(self.fastest), _round(self.slowest)
        return low if low == high else f"{low} to {high}"


def estimate(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, *,
    cards: Sequence[Card], steps: int, completions: int, prompt_tokens: int, completion_tokens: int,
) -> Hours:  # fmt: skip
    """Hours on these cards for so many steps and completions of this mean length, each step as in `memory`."""
    of = sorted(
        (
            steps * step_seconds(
                recipe, shape, engines, memory, card, completions=completions / steps,
                prompt_tokens=prompt_tokens, completion_tokens=completion_tokens,
            ) / 3600,
            card.name,
        )
        for card in cards
    )  # fmt: skip
    return Hours(of[0][0], of[-1][0], tuple(name for _, name in of))


def step_seconds(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, card: Card, *,
    completions: float, prompt_tokens: int, completion_tokens: int,
) -> float:  # fmt: skip
    """Sampling and training of one step with so many completions."""
    prompts = completions / recipe.completions_per_prompt
    tokens = completions * completion_tokens + prompts * prompt_tokens
    rate = card.operations_32 if number_bytes(recipe.model) == 4 else card.operations
    seconds = tokens * training_operations(recipe, shape) / (MULTIPLY * rate)
    if memory.sequences is None:
        return seconds
    room = min(recipe.rollout.max_completion_tokens, recipe.model.max_seq_length - prompt_tokens)
    held = max(1, memory.sequences) * (prompt_tokens + room)  # tokens in the cache
    turns = math.ceil(completions * (prompt_tokens + completion_tokens) / held)
    cache = completions * (prompt_tokens + completion_tokens / 2) * kv_bytes(shape, number_bytes(recipe.model))
    decode = (turns * weight_traffic(recipe.model, shape) + cache) / (READ * card.bandwidth)
    launches = turns * shape.layers * LAUNCH if engines.engine == "transformers" else 0.0
    return seconds + completion_tokens * (decode + launches)


def training_operations(recipe: Recipe, shape: ModelShape) -> float:
    """For each token of a step: 2 a weight and pass."""
    passes = 2.0 + (recipe.model.lora is None) + recipe.model.gradient_checkpointing
    return 2.0 * shape.parameters * (passes * recipe.objective.num_iterations + (recipe.objective.kl_coef > 0))


def weight_traffic(model: ModelRecipe, shape: ModelShape) -> float:
    """Bytes to and from memory for the next token of all sequences; of the embeddings only the output layer."""
    number = number_bytes(model)
    each = 0.5 + 2 * number if model.load_in_4bit else number
    return shape.linear_parameters * each + shape.vocabulary * shape.hidden * number


def _round(hours: float) -> str:
    """Two figures: more would promise what an estimate cannot hold."""
    if hours >= 10:
        return f"{float(f'{hours:.2g}'):,.0f}"
    return f"{hours:.2g}"
