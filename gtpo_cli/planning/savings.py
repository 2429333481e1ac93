"""Find changes that make a run faster on the same GPU: other values of a few keys, with the hours by the same plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from gtpo_cli.models import Engines
from gtpo_cli.planning.cards import Card
from gtpo_cli.planning.duration import Hours
from gtpo_cli.planning.memory import Memory, best_memory, memory_of
from gtpo_cli.planning.open_keys import closed, machine_with
from gtpo_cli.planning.shapes import ModelShape
from gtpo_cli.recipe import Recipe

STEPS_PER_GENERATION = 8  # with more, samples get too old for the little time saved
BASE, AHEAD, SHARE = "model.load_in_4bit", "rollout.steps_per_generation", "rollout.gpu_memory_utilization"
_SHARES = tuple(percent / 100 for percent in range(10, 95, 5))
_SHARE_WORTH = 0.95  # another share of the GPU must save 5 % of the hours
_WORTH = 0.9  # a change must save 10 % of the hours, else it counts as about as fast


class Saving(NamedTuple):
    """A change of a recipe. `values`: the new values by dotted key."""

    values: dict[str, Any]
    hours: Hours

    @property
    def keys(self) -> set[str]:
        """The changed keys except the engine's share, which only follows."""
        return self.values.keys() - {SHARE}

    def __str__(self) -> str:
        return ", ".join(f"{key}: {str(value).lower()}" for key, value in self.values.items())


def changes(
    recipe: Recipe, shape: ModelShape, engines: Engines, gpu: Card | float, *,
    prompt_tokens: int, completion_tokens: int, hours: Callable[[Recipe, Memory], Hours],
) -> tuple[Saving, ...]:  # fmt: skip
    """Return the changes that fit, fastest first, each with a suitable share for the engine.

    `recipe`: with its open keys; `hours`: estimates the hours of a recipe with its memory.
    """
    size = gpu.memory if isinstance(gpu, Card) else gpu

    def tried(values: dict[str, Any]) -> Saving | None:
        changed = closed(recipe.with_values(values), machine_with(gpu), shape)
        need = partial(memory_of, changed, shape, engines, prompt_tokens=prompt_tokens)
        memory = best_memory(need, completion_tokens, size)
        return None if memory is None else Saving(values, hours(changed, memory))

    found = []
    for values in _candidates(recipe, shape):
        best = tried(values)
        for share in _SHARES if engines.shared else ():
            other = tried(values | {SHARE: share})
            if other and (best is None or other.hours.middle < _SHARE_WORTH * best.hours.middle):
                best = other
        if best is not None:
            found.append(best)
    return tuple(sorted(found, key=lambda change: change.hours.middle))


def _candidates(recipe: Recipe, shape: ModelShape) -> Iterator[dict[str, Any]]:
    """Yield changes that do not affect the length of completions; docs/memory.md explains them."""
    ahead = {AHEAD: STEPS_PER_GENERATION} if recipe.samples and recipe.rollout.steps_per_generation == 1 else {}
    base = {BASE: not recipe.model.load_in_4bit} if recipe.model.lora is not None and not shape.quantized else {}
    yield {}  # perhaps only another share of the engine
    if ahead:
        yield ahead
    if base:
        yield base
    if ahead and base:
        yield ahead | base
    if recipe.model.gradient_checkpointing:
        yield {"model.gradient_checkpointing": False}


def most_saving(found: tuple[Saving, ...], now: Hours) -> Saving | None:
    """Return the single change that saves most, if it saves a tenth or more."""
    single = (change for change in found if len(change.keys) == 1 or (change.values and not change.keys))
    return next((change for change in single if change.hours.middle < _WORTH * now.middle), None)


def faster_base(found: tuple[Saving, ...], now: Hours) -> Saving | None:
    """Return the change to base weights of the other kind (4 or 16 bits), if that is faster."""
    return next((c for c in found if c.keys == {BASE} and c.hours.middle < _WORTH * now.middle), None)


def base_words(recipe: Recipe, found: tuple[Saving, ...], now: Hours) -> Iterator[str]:
    """Compare base weights in 4 and 16 bits, for the recipe and for more steps a generation, if both fit."""
    own, other = ("4 bits", "16 bits") if recipe.model.load_in_4bit else ("16 bits", "4 bits")
    for keys in (set[str](), {AHEAD}):
        here = now if not keys else next((change.hours for change in found if change.keys == keys), None)
        there = next((change for change in found if change.keys == keys | {BASE}), None)
        if here is None or there is None:
            continue
        verdict = compared(here, there.hours, f"{own} are faster", f"{other} are faster")
        yield f"{own} {in_words(here)}, {other} {in_words(there.hours)} ({there}): {verdict}"


def in_words(hours: Hours) -> str:
    """Format hours with their unit: minutes if the whole range is below an hour."""
    if hours.slowest >= 1:
        return f"{hours} h"
    return f"{Hours(60 * hours.fastest, 60 * hours.slowest, hours.cards)} min"


def compared(one: Hours, other: Hours, first: str, second: str) -> str:
    """Return `first` if the one is faster by a tenth or more, `second` if the other is."""
    ratio = other.middle / one.middle
    return second if ratio < _WORTH else first if ratio > 1 / _WORTH else "about as fast"
