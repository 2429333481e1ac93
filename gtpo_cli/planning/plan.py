"""What a recipe takes (steps, tokens, memory) and what would fit a GPU, from data, tokenizer and configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gtpo_cli.errors import GtpoError
from gtpo_cli.models import Engines, choose_engines
from gtpo_cli.models.engines import LIBRARIES
from gtpo_cli.planning.memory import GIB, Memory, memory_of
from gtpo_cli.planning.shapes import ModelShape, read_shape
from gtpo_cli.recipe import Recipe
from gtpo_cli.training.plan import StepPlan, plan_steps

USABLE = 0.95  # of a GPU's memory; the rest is lost between allocations
SIZES = tuple(size * GIB for size in (8, 12, 16, 24, 32, 40, 48, 80, 96, 141))  # GPUs that there are


@dataclass(frozen=True, slots=True)
class Plan:
    """`counts`: None where data or tokenizer cannot be had, for the reason in `notes`."""

    shape: ModelShape
    shape_source: str
    engines: Engines
    counts: StepPlan | None
    notes: tuple[str, ...]
    prompt_tokens: int  # longest prompt: that of the data, else the recipe's bound
    completion_tokens: int
    gpu: float  # asked for, found, or the smallest on which the recipe fits
    memory: Memory
    fits: bool
    longest_completion: int  # one completion at a time in training; 0 where nothing fits


def make_plan(recipe: Recipe, *, gpu: float | None, engines: Engines | None = None) -> Plan:
    """Plan for a GPU of so many bytes; None for the smallest that would do. `engines`: by default what the recipe comes
    to where all libraries are.

    Raises ModelError where not even the model's configuration can be had.
    """
    shape, source = read_shape(recipe.model)
    engines = engines or choose_engines(recipe, gpu=True, installed=LIBRARIES)
    counts, notes = _counts(recipe)
    prompt = counts.longest_prompt if counts else recipe.data.max_prompt_tokens
    completion = min(recipe.rollout.max_completion_tokens, recipe.model.max_seq_length - prompt)
    need = partial(memory_of, recipe, shape, engines, prompt_tokens=prompt)
    if gpu is None:
        gpu = next((size for size in SIZES if _best(need, completion, size) is not None), SIZES[-1])
    best = _best(need, completion, gpu)
    memory = best or need(completion_tokens=completion, gpu=gpu, limit=1)
    longest = _longest(need, recipe.model.max_seq_length - prompt, gpu)
    return Plan(
        shape, source, engines, counts, tuple(notes), prompt, completion, gpu, memory, best is not None, longest
    )


def _counts(recipe: Recipe) -> tuple[StepPlan | None, list[str]]:
    try:
        counts = plan_steps(recipe)
    except GtpoError as error:
        return None, [f"steps and prompts are not known here: {error}"]
    return counts, counts.notes


def fits(memory: Memory, gpu: float) -> bool:
    """Both halves of a step fit, and at least one sequence can be sampled."""
    return memory.peak <= USABLE * gpu and memory.sequences >= 1


def _best(need: Callable[..., Memory], completion: int, gpu: float) -> Memory | None:
    """With as many completions in a forward as the recipe asks for and memory allows (training halves them)."""
    limit: int | None = None
    while True:
        memory = need(completion_tokens=completion, gpu=gpu, limit=limit)
        if fits(memory, gpu):
            return memory
        if memory.rows == 1:
            return None
        limit = memory.limit // 2


def _longest(need: Callable[..., Memory], room: int, gpu: float) -> int:
    """The longest completion that fits with one completion in a forward, up to `room`."""
    low, high = 0, max(0, room)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(need(completion_tokens=middle, gpu=gpu, limit=1), gpu):
            low = middle
        else:
            high = middle - 1
    return low
