"""Mix several sets of problems into one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

from gtpo_cli.data.prompts import Prompt
from gtpo_cli.errors import DataError
from gtpo_cli.seeds import derive_seed
from gtpo_cli.text import counted

MAX_PROMPTS = 10_000_000  # per epoch; more would come from a mistyped weight


def mixed(parts: Sequence[Sequence[Prompt]], weights: Mapping[str, float], *, seed: int) -> tuple[list[Prompt], str]:
    """Return an epoch of prompts in the proportions of the sources' weights, and a note with the counts.

    Every prompt comes at least once; prompts of a part that is small for its weight come several times. Only the order
    of the parts is random, by `seed`. Raises DataError if the weights need too many prompts.
    """
    total = sum(weights.values())
    shares = [weight / total for weight in weights.values()]
    length = max(len(part) / share for part, share in zip(parts, shares, strict=True))
    if length > MAX_PROMPTS:
        raise DataError(
            f"data.mixture: these weights make an epoch of {length:.0f} prompts; choose more similar weights"
        )
    counts = [round(length * share) for share in shares]
    order = [number for number, count in enumerate(counts) for _ in range(count)]
    random.Random(derive_seed(seed, "mixture")).shuffle(order)
    endless = [itertools.cycle(part) for part in parts]
    words = [
        f"{count} of {name} ({counted(len(part), 'problem')}, weight {weight:g})"
        for count, part, (name, weight) in zip(counts, parts, weights.items(), strict=True)
    ]
    note = f"mixture: {counted(len(order), 'prompt')} an epoch: {', '.join(words)}"
    return [next(endless[number]) for number in order], note
