"""What a recipe takes (steps, tokens, memory) and what would fit a GPU, from data, tokenizer and configuration."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gtpo_cli.data import Prepared, prepare
from gtpo_cli.data.benchmarks import hub_source
from gtpo_cli.errors import GtpoError
from gtpo_cli.models import Engines, choose_engines, load_tokenizer
from gtpo_cli.models.engines import LIBRARIES, is_float32
from gtpo_cli.models.tiny import BUILTIN_PREFIX
from gtpo_cli.planning.cards import GIB, Card, cards_of
from gtpo_cli.planning.duration import Hours, estimate
from gtpo_cli.planning.memory import NF4_BYTES, Memory, memory_of
from gtpo_cli.planning.shapes import ModelShape, read_shape
from gtpo_cli.recipe import Recipe

USABLE = 0.95  # of a GPU's memory; the rest is lost between allocations
SIZES = tuple(size * GIB for size in (8, 12, 16, 24, 32, 40, 48, 80, 96, 141))  # GPUs that there are


@dataclass(frozen=True, slots=True)
class Plan:
    """`counts`: None where data or tokenizer cannot be had, for the reason in `notes`."""

    shape: ModelShape
    shape_source: str
    engines: Engines
    counts: Prepared | None
    notes: tuple[str, ...]
    prompt_tokens: int  # longest prompt: that of the data, else the recipe's bound
    completion_tokens: int
    gpu: float  # asked for, found, or the smallest on which the recipe fits
    card: Card | None  # that was asked for
    memory: Memory
    fits: bool
    longest_completion: int  # one completion at a time in training; 0 where nothing fits
    better_share: float | None  # of the GPU's memory for the shared engine, with which all of a step is sampled at once
    downloads: tuple[str, ...]  # what the hub is asked for
    hours: tuple[tuple[int, Hours], ...]  # mean completion -> of the whole run; empty where steps are not known


def make_plan(
    recipe: Recipe, *, gpu: Card | float | None, engines: Engines | None = None, read_data: bool = True
) -> Plan:
    """Plan for a card, or a GPU of so many bytes; None for the smallest that would do. `engines`: by
    default what the recipe comes to where all libraries are. Without `read_data` prompts count as nothing: the least
    that is needed, at once.

    Raises ModelError where not even the model's configuration can be had.
    """
    shape, source = read_shape(recipe.model)
    counts, notes = None, list[str]()
    card, gpu = (gpu, gpu.memory) if isinstance(gpu, Card) else (None, gpu)
    if card is not None and recipe.model.dtype == "auto" and is_float32(recipe.model, card.capability):
        notes.append(f"{card.name} has no bfloat16: float32")
        recipe = as_computed(recipe, card.capability)
    engines = engines or choose_engines(
        recipe, gpu=True, installed=LIBRARIES, capability=card.capability if card else None
    )
    if shape.positions and shape.positions < recipe.model.max_seq_length:
        notes.append(f"the model's context is {shape.positions} tokens, so model.max_seq_length is that")
        model = recipe.model.model_copy(update={"max_seq_length": shape.positions})
        recipe = recipe.model_copy(update={"model": model})
    context = recipe.model.max_seq_length
    if read_data:
        try:
            counts = prepare(recipe, *load_tokenizer(recipe))
            notes += counts.notes
            step = {"prompts_per_step": counts.order.prompts_per_step}  # as the data allow
            recipe = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update=step)})
        except GtpoError as error:
            notes.append(f"steps and prompts are not known here: {error}")
    prompt = counts.longest_prompt if counts else min(recipe.data.max_prompt_tokens, context - 1) if read_data else 0
    completion = min(recipe.rollout.max_completion_tokens, context - prompt)
    need = partial(memory_of, recipe, shape, engines, prompt_tokens=prompt)
    if gpu is None:
        gpu = next((size for size in SIZES if best_memory(need, completion, size) is not None), SIZES[-1])
    best = best_memory(need, completion, gpu)
    memory = best or need(completion_tokens=completion, gpu=gpu, limit=1)
    longest = 0
    if read_data:  # the last length that fits with one completion in a forward
        room = range(1, context - prompt + 1)
        longest = bisect(
            room, False, key=lambda length: not fits(need(completion_tokens=length, gpu=gpu, limit=1), gpu)
        )
    hours: list[tuple[int, Hours]] = []
    if counts and not recipe.model.name.startswith(BUILTIN_PREFIX):
        for mean in dict.fromkeys((max(1, completion // 5), completion)):
            of = estimate(
                recipe, shape, engines, memory, cards=(card,) if card else cards_of(gpu),
                steps=counts.order.total_steps, completions=counts.sampled + counts.imitated, prompt_tokens=prompt,
                completion_tokens=mean,
            )  # fmt: skip
            hours.append((mean, of))
    return Plan(
        shape, source, engines, counts, tuple(notes), prompt, completion, gpu, card, memory, best is not None, longest,
        _better_share(recipe, shape, engines, memory, prompt_tokens=prompt, completion_tokens=completion, gpu=gpu),
        downloads(recipe, shape), tuple(hours),
    )  # fmt: skip


def as_computed(recipe: Recipe, capability: tuple[int, int]) -> Recipe:
    """The recipe with the type that model.dtype: auto comes to on a GPU of this compute capability."""
    if not is_float32(recipe.model, capability):
        return recipe
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"dtype": "float32"})})


def _better_share(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, *,
    prompt_tokens: int, completion_tokens: int, gpu: float,
) -> float | None:  # fmt: skip
    """The least rollout.gpu_memory_utilization with which a step's completions are sampled in one turn, where the
    recipe's is too small for that; it costs nothing while the engine sleeps. None where none fits."""
    wanted = recipe.rollout.group_size * recipe.rollout.prompts_per_step
    if not engines.shared or memory.sequences is None or memory.sequences >= wanted:
        return None
    for percent in range(5, 96, 5):
        rollout = recipe.rollout.model_copy(update={"gpu_memory_utilization": percent / 100})
        tried = memory_of(
            recipe.model_copy(update={"rollout": rollout}), shape, engines, prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens, gpu=gpu, limit=1,
        )  # fmt: skip
        if fits(tried, gpu) and (tried.sequences or 0) >= wanted:
            return percent / 100
    return None


def downloads(recipe: Recipe, shape: ModelShape) -> tuple[str, ...]:
    """What is fetched from the hub unless it is in the cache: the names that the recipe says, and no others."""
    names = []
    name = recipe.model.name
    if not name.startswith(BUILTIN_PREFIX) and not Path(name).exists():
        size = shape.linear_parameters * (NF4_BYTES if shape.quantized else 2) + 2 * shape.other_parameters
        bits = "4-bit" if shape.quantized else "16-bit"
        names.append(f"{name} ({size / GIB:.1f} GiB of {bits} weights)")
    sources = filter(None, map(hub_source, recipe.data.sources))
    names += [f"{source.id} (data)" for source in sources if not Path(source.id).exists()]
    return tuple(names)


def fits(memory: Memory, gpu: float) -> bool:
    """Both halves of a step fit, and at least one sequence can be sampled where any is."""
    return memory.peak <= USABLE * gpu and memory.sequences != 0


def best_memory(need: Callable[..., Memory], completion: int, gpu: float) -> Memory | None:
    """With as many completions in a forward as the recipe asks for and memory allows (training halves them)."""
    limit: int | None = None
    while True:
        memory = need(completion_tokens=completion, gpu=gpu, limit=limit)
        if fits(memory, gpu):
            return memory
        if memory.rows == 1:
            return None
        limit = memory.limit // 2
