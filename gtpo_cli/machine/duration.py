"""Estimate how long a run takes, within a factor of two.

One pass through the model computes one token of every sequence in flight. On a GPU it takes as long as reading the
weights and the cache, or multiplying if that is longer, plus the launch of each block's kernels. A generation ends with
its longest completion. Training multiplies each token by each weight in every pass, and reads the weights at least
once a pass. The shares are those of the one measured run (MEASURED; docs/benchmarks.md). Not included: attention's
arithmetic, slow rewards, evaluation, checkpoints, loading, compilation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from gtpo_cli.job import Engines
from gtpo_cli.machine.cards import GIB, Card
from gtpo_cli.machine.memory import CONTEXT, Memory, best_memory, cache_bytes, memory_of, number_bytes
from gtpo_cli.machine.open_keys import Machine, close, machine_with
from gtpo_cli.machine.shapes import ModelShape
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import ModelRecipe

# An H100: 8 completions of 1,500 tokens by LLaMA-3.1-8B in 4 bits, 25.7 s of sampling and 1.8 s of training a step
MEASURED = 27.5
READ, MULTIPLY = 0.7, 0.33  # reached shares of the data sheet's bandwidth and arithmetic
LAUNCH = {True: 75e-6, False: 1e-3}  # seconds of a block's kernels, in vLLM's CUDA graphs and without
LONGEST = 2.0  # longest completion of a generation over the mean one
OFF = math.sqrt(2)  # factor by which a run may be faster or slower
NF4 = 0.5 + 4 / 64  # bytes of a 4-bit weight as vLLM keeps it
# bitsandbytes 0.50 multiplies so many rows with 4-bit weights directly, on cards without HBM. For more rows, and with
# HBM, it writes the weights in 16 bits and reads them again.
FUSED_ROWS = 96
AHEAD, BASE, SHARE = "rollout.steps_per_generation", "model.load_in_4bit", "rollout.gpu_memory_utilization"
CHECKPOINTING = "model.gradient_checkpointing"
WORTH = 0.8  # a change that is offered saves a fifth of the hours
# One CPU core on SmolLM2-135M: operations a second; seconds of a block's small operations for one token
CPU_SAMPLING, CPU_TRAINING, CPU_BLOCK = 37e9, 110e9, 1e-3
CPU_PROCESS, CPU_OTHER, CPU_OFF = 0.5 * GIB, 1.5, 2.0  # Python; actual over planned memory; a slower or faster core


class Hours(NamedTuple):
    """The least and the most hours of a whole run, over the cards of a size."""

    least: float
    most: float

    def __str__(self) -> str:
        unit, factor = ("h", 1) if self.most >= 1 else ("min", 60)
        low, high = (f"{float(f'{factor * hours:.2g}'):,g}" for hours in self)
        return f"{low} to {high} {unit}"


def estimate(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, *,
    cards: Iterable[Card], steps: int, completions: int, prompt_tokens: int, completion_tokens: int,
) -> Hours:  # fmt: skip
    """Estimate the hours for so many steps and completions of this mean length; steps as in `memory`."""
    hours = [
        steps / 3600 * step_seconds(
            recipe, shape, engines, memory, card, completions=completions / steps, prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
        ) for card in cards
    ]  # fmt: skip
    return Hours(min(hours) / OFF, max(hours) * OFF)


def step_seconds(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, card: Card, *,
    completions: float, prompt_tokens: int, completion_tokens: int,
) -> float:  # fmt: skip
    """Estimate the seconds of a step with so many completions: its share of a generation, and its update."""
    number = number_bytes(recipe.model)
    multiply = MULTIPLY * (card.operations_32 if number == 4 else card.operations)
    read = READ * card.bandwidth
    tokens = completions * (completion_tokens + prompt_tokens / recipe.completions_per_prompt)
    passes = training_passes(recipe)
    training = passes * max(
        2 * shape.parameters * tokens / multiply, weight_traffic(recipe.model, shape, card, tokens) / read
    )
    if memory.sequences is None:
        return training
    steps, room = recipe.rollout.steps_per_generation, recipe.rollout.max_completion_tokens
    sampled = completions * steps
    cached = max(1, memory.sequences) * (prompt_tokens + room)  # tokens in the cache
    at_once = min(sampled, max(1.0, cached / (prompt_tokens + completion_tokens)))
    if recipe.rollout.max_num_seqs != "auto":
        at_once = min(at_once, recipe.rollout.max_num_seqs)
    # all slots are full until the last completions end, the longest of them last
    lasting = (sampled - at_once) * completion_tokens / at_once + min(room, LONGEST * completion_tokens)
    rows = sampled * completion_tokens / lasting
    moved = weight_traffic(recipe.model, shape, card, rows)
    moved += rows * (prompt_tokens + completion_tokens / 2) * cache_bytes(recipe, shape, engines)
    a_pass = (
        max(moved / read, 2 * shape.parameters * rows / multiply) + shape.layers * LAUNCH[_in_graphs(recipe, engines)]
    )
    return lasting * a_pass / steps + training


def _in_graphs(recipe: Recipe, engines: Engines) -> bool:
    return engines.engine == "vllm" and not recipe.rollout.vllm.get("enforce_eager")


def training_passes(recipe: Recipe) -> float:
    """Count how often a token meets each weight in a step: forward, back, again with checkpointing, for ln pi_old."""
    passes = 2.0 + (recipe.model.lora is None) + bool(recipe.model.gradient_checkpointing)
    without_gradient = (recipe.objective.kl_coef > 0) + (recipe.generates and recipe.rollout.steps_per_generation > 1)
    return passes * recipe.objective.num_iterations + without_gradient


def weight_traffic(model: ModelRecipe, shape: ModelShape, card: Card, rows: float) -> float:
    """Count the bytes of weights that a pass of so many rows moves. Of the embeddings only the output layer counts."""
    number = number_bytes(model)
    adapter = 2 * shape.adapter_parameters(model.lora) if model.lora is not None else 0
    has_hbm = card.capability in ((8, 0), (9, 0))
    each = NF4 + 2 * number * (1 if has_hbm else min(1.0, rows / FUSED_ROWS)) if model.load_in_4bit else number
    return shape.linear_parameters * each + shape.vocabulary * shape.hidden * number + adapter


class Saving(NamedTuple):
    """A change of a recipe and its hours. `values`: the new values by dotted key."""

    values: dict[str, Any]
    hours: Hours

    def __str__(self) -> str:
        return ", ".join(f"{key}: {str(value).lower()}" for key, value in self.values.items())


def most_saving(
    recipe: Recipe, shape: ModelShape, engines: Engines, gpu: Card | float, now: Hours, *,
    prompt_tokens: int, completion_tokens: int, hours: Callable[[Recipe, Memory], Hours],
) -> Saving | None:  # fmt: skip
    """Return the one change that fits and saves most, if it saves a fifth; a shared engine's share follows.

    `recipe`: with its open keys; `hours`: estimates the hours of a recipe with its memory.
    """
    changes: list[dict[str, Any]] = [{}]
    if recipe.generates and recipe.rollout.steps_per_generation == 1:
        changes.append({AHEAD: 8})  # with more, samples get too old for the little time saved
    if recipe.model.lora is not None and not shape.quantized:
        changes.append({BASE: not recipe.model.load_in_4bit})
    if recipe.model.gradient_checkpointing:
        changes.append({CHECKPOINTING: False})
    found = []
    for values in changes:
        asked = recipe.with_values(values | ({SHARE: "auto"} if engines.shared else {}))
        tried = close(asked, machine_with(gpu), shape).recipe
        need = partial(memory_of, tried, shape, engines, prompt_tokens=prompt_tokens)
        memory = best_memory(need, completion_tokens, gpu.memory if isinstance(gpu, Card) else gpu)
        if memory is not None:
            share = tried.rollout.gpu_memory_utilization
            follows = {SHARE: share} if engines.shared and share != recipe.rollout.gpu_memory_utilization else {}
            found.append(Saving(values | follows, hours(tried, memory)))
    best = min(found, key=lambda saving: saving.hours.most, default=None)
    return best if best is not None and best.hours.most < WORTH * now.most else None


class CpuNeed(NamedTuple):
    """RAM in bytes and minutes of a run on one CPU core in float32, each as (least, most)."""

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
    recipe = close(recipe, Machine(0.0, None, frozenset()), shape).recipe
    plain = Engines("transformers", "transformers", False)
    memory = memory_of(recipe, shape, plain, prompt_tokens=prompt_tokens, completion_tokens=longest_completion, gpu=0.0)
    taken = memory.peak - CONTEXT
    tokens = completions * (mean_completion + prompt_tokens / recipe.completions_per_prompt)
    seconds = tokens * 2 * shape.parameters * training_passes(recipe) / CPU_TRAINING
    if recipe.generates:
        seconds += tokens * 2 * shape.parameters / CPU_SAMPLING + steps * longest_completion * shape.layers * CPU_BLOCK
    return CpuNeed(
        (CPU_PROCESS + taken, CPU_PROCESS + CPU_OTHER * taken), (seconds / 60 / CPU_OFF, seconds / 60 * CPU_OFF)
    )
