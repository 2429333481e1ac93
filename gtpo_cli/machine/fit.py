"""Plan a recipe's steps, tokens and memory, and what would fit a GPU, from data, tokenizer and configuration."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gtpo_cli.data import Prepared, Prompt, PromptOrder
from gtpo_cli.data.benchmarks import hub_source
from gtpo_cli.errors import GtpoError, ModelError
from gtpo_cli.job import Engines
from gtpo_cli.machine.cards import GIB, Card, cards_of
from gtpo_cli.machine.duration import CpuNeed, Hours, Saving, cpu_need, estimate, most_saving
from gtpo_cli.machine.memory import NF4_BYTES, Memory, best_memory, fits, memory_of
from gtpo_cli.machine.open_keys import LARGE, close, machine_with
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.machine.shapes import PUBLISHED_PROMPTS, ModelShape
from gtpo_cli.policy.copies import quantized_copy
from gtpo_cli.policy.engines import is_float32
from gtpo_cli.policy.tiny import BUILTIN_PREFIX
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.data import DEFAULT_SPLIT
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.types import Problem

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

    `recipe`: as it would run, with all keys resolved. `counts`: None if data or tokenizer are not available (`notes`
    has the reason) and there are no earlier counts.
    """

    recipe: Recipe
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
        recipe, shape, source, engines, counts, published, tuple(notes), prompt, completion, gpu, card, memory,
        best is not None, longest,
        _better_share(recipe, shape, engines, memory, prompt_tokens=prompt, completion_tokens=completion, gpu=gpu),
        downloads(recipe, shape), smaller_copy(recipe, shape),
        of_means, saving, cpu,
    )  # fmt: skip


def _counted_before(recipe: Recipe, why: GtpoError) -> Prepared | None:
    """Return the earlier counts, with empty prompts, for a model and data of the paper; None for others.

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
