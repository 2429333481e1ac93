"""Plan a recipe's steps, tokens and memory, and what would fit a GPU, from data, tokenizer and configuration.

The time is estimated within a factor of two. One pass through the model computes one token of every sequence in flight.
On a GPU it takes as long as reading the weights and the cache, or multiplying if that is longer, plus the launch of
each block's kernels. A generation ends with its longest completion. Training multiplies each token by each weight in
every pass, and reads the weights at least once a pass. The shares are those of the one measured run, on an H100
(docs/benchmarks.md). Not included: attention's arithmetic, slow rewards, evaluation, checkpoints, loading, compilation.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gtpo_cli.data import Prepared, Prompt, PromptOrder
from gtpo_cli.data.benchmarks import hub_source
from gtpo_cli.errors import GtpoError, ModelError
from gtpo_cli.hub import quantized_copy
from gtpo_cli.job import Engines
from gtpo_cli.machine.installed import GIB, Card, cards_of
from gtpo_cli.machine.memory import (
    CONTEXT,
    NF4_BYTES,
    ExportMemory,
    Memory,
    best_memory,
    cache_bytes,
    export_memory,
    fits,
    memory_of,
    number_bytes,
)
from gtpo_cli.machine.open_keys import LARGE, Machine, close, for_measuring, machine_with
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.machine.shapes import PUBLISHED_PROMPTS, ModelShape
from gtpo_cli.policy.engines import is_float32
from gtpo_cli.policy.tiny import BUILTIN_PREFIX
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.data import DEFAULT_SPLIT
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.types import Problem

# Shares of the data sheet's bandwidth and arithmetic that the measured run reached: 8 completions of 1,500 tokens by
# LLaMA-3.1-8B in 4 bits on an H100, 25.7 s of sampling and 1.8 s of training a step
READ, MULTIPLY = 0.7, 0.33
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


SIZES = tuple(size * GIB for size in (8, 12, 16, 24, 32, 40, 48, 80, 96, 141))  # GPUs that there are


@dataclass(frozen=True, slots=True)
class Copy:
    """A repository with the same weights in 4 bits instead of 16; sizes in bytes."""

    name: str
    size: float
    instead_of: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run.

    `recipe`: as it would run, with all keys resolved; `decided`: those that it leaves open. `counts`: None if data or
    tokenizer are not available (`notes` has the reason) and there are no earlier counts.
    """

    recipe: Recipe
    decided: dict[str, Any]
    shape: ModelShape
    shape_source: str
    engines: Engines
    counts: Prepared | None
    published: bool  # whether they were counted once, not here
    notes: tuple[str, ...]
    prompt_tokens: int  # longest prompt: that of the data, else the recipe's bound
    completion_tokens: int
    gpu: float  # requested, found, or the smallest on which the recipe fits
    card: Card | None  # the requested card
    memory: Memory
    fits: bool
    evaluation: Memory  # of gtpo eval
    probe: Memory  # of gtpo probe-entropy
    export: ExportMemory
    longest_completion: int  # one completion at a time in training; 0 where nothing fits
    better_share: float | None  # of GPU memory for the shared engine, to sample a step at once
    downloads: tuple[str, ...]  # from the hub
    smaller: Copy | None  # the same weights in 4 bits, if the run loads them in 4 bits anyway
    hours: tuple[tuple[int, Hours], ...]  # mean completion -> hours of the whole run; empty if steps are unknown
    saving: Saving | None  # the one change that fits and saves most, at the first of those means
    cpu: tuple[tuple[int, CpuNeed], ...]  # mean completion -> without a GPU; empty for large models, or without data


def make_plan(
    recipe: Recipe,
    *,
    gpu: Card | float | None,
    engines: Engines | None = None,
    parts: Parts | None = None,
    read_data: bool = True,
) -> Plan:
    """Plan for a card, or a GPU of so many bytes; None means the smallest that fits.

    `engines`: by default the recipe's choice with all libraries installed. `parts`: those of the recipe that were found
    before. Without `read_data` prompts count as empty, which quickly gives a lower bound.

    Raises ModelError if not even the model's configuration is available.
    """
    parts = parts or Parts(recipe)
    shape, source = parts.shape_and_source
    counts, published, notes = None, False, list[str]()
    card, gpu = (gpu, gpu.memory) if isinstance(gpu, Card) else (None, gpu)
    if card is not None and recipe.model.dtype == "auto" and is_float32(recipe.model, card.capability):
        notes.append(f"{card.name} has no bfloat16, and in float16 small gradients become 0: float32, on transformers")
    asked = recipe

    def on(gpu: Card | float) -> Recipe:
        return recipe.with_values(close(asked, machine_with(gpu), shape).values)

    if engines is None:
        chosen = close(asked, machine_with(card or gpu or SIZES[-1]), shape).engines
        if isinstance(chosen, ModelError):
            raise chosen
        engines = chosen
    if shape.positions and shape.positions < recipe.model.max_seq_length:
        notes.append(f"model.max_seq_length is lowered to the model's context, {shape.positions} tokens")
        recipe = recipe.with_values({"model.max_seq_length": shape.positions})
    context = recipe.model.max_seq_length
    if read_data:
        try:
            counts = parts.data
        except GtpoError as error:
            counts, published = _counted_before(recipe, error), True
            if counts is None:
                notes.append(f"steps and prompts are not known here: {error}")
        if counts is not None:
            notes += counts.notes
            as_the_data_allow = {"rollout.prompts_per_step": counts.order.prompts_per_step}
            recipe = recipe.with_values(as_the_data_allow)
    prompt = counts.longest_prompt if counts else min(recipe.data.max_prompt_tokens, context - 1) if read_data else 0
    completion = min(recipe.rollout.max_completion_tokens, context - prompt)

    def need_on(gpu: Card | float) -> Callable[..., Memory]:
        return partial(memory_of, on(gpu), shape, engines, prompt_tokens=prompt)

    if gpu is None:
        gpu = next((size for size in SIZES if best_memory(need_on(size), completion, size) is not None), SIZES[-1])
    left_open = close(asked, machine_with(card or gpu), shape)
    notes += [left_open.words] if left_open.words else []
    left, recipe = recipe, recipe.with_values(left_open.values)
    need = need_on(card or gpu)
    best = best_memory(need, completion, gpu)
    memory = best or need(completion_tokens=completion, gpu=gpu, limit=1)
    longest = 0
    if read_data:  # the greatest length that fits with one completion in a forward
        room = range(1, context - prompt + 1)
        longest = bisect(
            room, False, key=lambda length: not fits(need(completion_tokens=length, gpu=gpu, limit=1), gpu)
        )
    measured = for_measuring(recipe, machine_with(card or gpu), shape, engines)

    def measuring(completion: int) -> Memory:
        needed = partial(memory_of, measured, shape, engines, prompt_tokens=prompt, measures=True)
        return best_memory(needed, completion, gpu) or needed(completion_tokens=completion, gpu=gpu, limit=1)

    means = list(dict.fromkeys((max(1, completion // 5), completion))) if counts else []
    cpu = tuple(
        (mean, cpu_need(
            left, shape, steps=counts.order.total_steps, completions=counts.sampled + counts.imitated,
            prompt_tokens=prompt, longest_completion=completion, mean_completion=mean,
        ))
        for mean in means if counts and shape.parameters < LARGE
    )  # fmt: skip
    if best is None or recipe.model.name.startswith(BUILTIN_PREFIX):
        means = []  # it does not fit, or is not for a GPU

    def hours(of: Recipe, memory: Memory, mean: int) -> Hours:
        assert counts is not None
        return estimate(
            of, shape, engines, memory, cards=(card,) if card else cards_of(gpu), steps=counts.order.total_steps,
            completions=counts.sampled + counts.imitated, prompt_tokens=prompt, completion_tokens=mean,
        )  # fmt: skip

    of_means = tuple((mean, hours(recipe, memory, mean)) for mean in means)
    saving = None
    if of_means:
        saving = most_saving(
            left, shape, engines, card or gpu, of_means[0][1], prompt_tokens=prompt, completion_tokens=completion,
            hours=partial(hours, mean=means[0]),
        )  # fmt: skip
    return Plan(
        recipe, left_open.values, shape, source, engines, counts, published, tuple(notes), prompt, completion, gpu,
        card, memory,
        best is not None,
        measuring(min(recipe.evaluation.max_completion_tokens, context - prompt)), measuring(completion),
        export_memory(recipe, shape, prompt_tokens=prompt), longest,
        _better_share(recipe, shape, engines, memory, prompt_tokens=prompt, completion_tokens=completion, gpu=gpu),
        downloads(recipe, shape), smaller_copy(recipe, shape),
        of_means, saving, cpu,
    )  # fmt: skip


def _counted_before(recipe: Recipe, why: GtpoError) -> Prepared | None:
    """Return the earlier counts, with empty prompts, for a model and data of a shipped recipe; None for others.

    `why`: the reason why they cannot be counted here.
    """
    data = recipe.data
    found = PUBLISHED_PROMPTS.get((recipe.model.name, data.benchmark))
    whole = data.path is None and data.limit is None and data.split == DEFAULT_SPLIT
    if found is None or not whole or recipe.objective.name == "sft" or data.max_prompt_tokens < found[0]:
        return None
    longest, problems = found
    prompts: list[Prompt] = [(Problem(id="", question="", gold=""), ())] * problems
    order = PromptOrder(recipe, prompts)
    note = (
        f"steps and prompts use earlier counts, {problems:,} of at most {longest:,} tokens, since tokenizer or data "
        f"are not available here: {why}"
    )
    sampled = order.total_prompts * recipe.rollout.group_size
    row = min(recipe.model.max_seq_length, longest + recipe.rollout.max_completion_tokens)
    return Prepared(prompts, order, 0, [note], sampled, 0, longest, row)


def _better_share(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, *,
    prompt_tokens: int, completion_tokens: int, gpu: float,
) -> float | None:  # fmt: skip
    """Return the least rollout.gpu_memory_utilization that samples a step at once, if the recipe's is too small.

    It costs nothing if the engine sleeps during training. None if no share fits.
    """
    wanted = recipe.rollout.completions_at_once
    if not engines.shared or memory.sequences is None or memory.sequences >= wanted:
        return None
    for percent in range(5, 96, 5):
        changes = {"rollout.gpu_memory_utilization": percent / 100, "rollout.max_num_seqs": "auto"}
        tried = memory_of(
            recipe.with_values(changes), shape, engines, prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens, gpu=gpu, limit=1,
        )  # fmt: skip
        if fits(tried, gpu) and (tried.sequences or 0) >= wanted:
            return percent / 100
    return None


def downloads(recipe: Recipe, shape: ModelShape) -> tuple[str, ...]:
    """List the downloads from the hub unless they are cached: exactly the names in the recipe."""
    names = []
    if _is_fetched(recipe.model):
        bits = "4-bit" if shape.quantized else "16-bit"
        size = stored_bytes(shape, quantized=shape.quantized)
        names.append(f"{recipe.model.name} ({size / GIB:.1f} GiB of {bits} weights)")
    sources = filter(None, map(hub_source, recipe.data.sources))
    names += [f"{source.id} (data)" for source in sources if not Path(source.id).exists()]
    return tuple(names)


def smaller_copy(recipe: Recipe, shape: ModelShape) -> Copy | None:
    """Return the known 4-bit copy of a model that is fetched in 16 bits and loaded in 4; None without one."""
    name = quantized_copy(recipe.model.name)
    if name is None or shape.quantized or not recipe.model.load_in_4bit or not _is_fetched(recipe.model):
        return None
    return Copy(name, stored_bytes(shape, quantized=True), stored_bytes(shape, quantized=False))


def stored_bytes(shape: ModelShape, *, quantized: bool) -> float:
    """Return the size of weights on disk in 16 bits, or in NF4 with 16-bit embeddings, output layer and norms."""
    return shape.linear_parameters * (NF4_BYTES if quantized else 2) + 2 * shape.other_parameters


def _is_fetched(model: ModelRecipe) -> bool:
    return not model.name.startswith(BUILTIN_PREFIX) and not Path(model.name).exists()
