"""Several sets of problems as one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from gtpo_cli.data.prompts import Prompt
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import PartRecipe
from gtpo_cli.seeds import derive_seed
from gtpo_cli.text import counted

MAX_PROMPTS = 10_000_000  # of an epoch; more are a weight with a zero too many


def mixed(parts: Sequence[Sequence[Prompt]], recipes: Sequence[PartRecipe], *, seed: int) -> tuple[list[Prompt], str]:
    """An epoch of prompts of all parts in their weights' shares, each at least once, and a note with the counts.

    Those of a part that is small for its weight come several times. `seed`: of the order of the parts, which is all
    that is random. Raises DataError where weights ask for too many.
    """
    total = sum(recipe.weight for recipe in recipes)
    shares = [recipe.weight / total for recipe in recipes]
    length = max(len(part) / share for part, share in zip(parts, shares, strict=True))
    if length > MAX_PROMPTS:
        raise DataError(f"data.mixture: these weights make an epoch of {length:.0f} prompts; give them more alike")
    counts = [round(length * share) for share in shares]
    drawn = [number for number, count in enumerate(counts) for _ in range(count)]
    random.Random(derive_seed(seed, "mixture")).shuffle(drawn)
    endless = [itertools.cycle(part) for part in parts]
    words = [
        f"{count} of {recipe.name} ({counted(len(part), 'problem')}, weight {recipe.weight:g})"
        for count, part, recipe in zip(counts, parts, recipes, strict=True)
    ]
    note = f"mixture: {counted(len(drawn), 'prompt')} an epoch: {', '.join(words)}"
    return [next(endless[number]) for number in drawn], note
