"""A table of GPUs by the names people type. It is torch-free, since shell completion reads it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gtpo_cli.recipe.schema import BFLOAT16

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU by its data sheet.

    Memory in GiB, its bandwidth in bytes/s, dense products in operations/s in 16 bits (bfloat16 if the card has it) and
    in 32, and compute capability.
    """

    short: str  # what --gpu takes, as well as the name
    name: str
    size: int
    bandwidth: float
    operations: float
    operations_32: float
    capability: tuple[int, int]
    seen: float | None = None  # GiB that CUDA shows if error correction takes a part

    @property
    def memory(self) -> float:
        """The memory in bytes."""
        return (self.seen or self.size) * GIB


CARDS = (
    Card("3060", "RTX 3060", 12, 360e9, 25e12, 13e12, (8, 6)),
    Card("4070", "RTX 4070", 12, 504e9, 58e12, 29e12, (8, 9)),
    Card("t4", "T4", 16, 300e9, 65e12, 8.1e12, (7, 5), seen=14.7),
    Card("4060ti", "RTX 4060 Ti", 16, 288e9, 44e12, 22e12, (8, 9)),
    Card("5080", "RTX 5080", 16, 960e9, 112e12, 56e12, (12, 0)),
    Card("l4", "L4", 24, 300e9, 121e12, 30e12, (8, 9), seen=22.1),
    Card("3090", "RTX 3090", 24, 936e9, 71e12, 36e12, (8, 6)),
    Card("4090", "RTX 4090", 24, 1008e9, 165e12, 83e12, (8, 9)),
    Card("5090", "RTX 5090", 32, 1792e9, 209e12, 105e12, (12, 0)),
    Card("a100-40gb", "A100 40GB", 40, 1555e9, 312e12, 19.5e12, (8, 0)),
    Card("a6000", "RTX A6000", 48, 768e9, 155e12, 39e12, (8, 6)),
    Card("l40s", "L40S", 48, 864e9, 362e12, 92e12, (8, 9), seen=44.3),
    Card("a100-80gb", "A100 80GB", 80, 1935e9, 312e12, 19.5e12, (8, 0)),
    Card("h100", "H100 SXM", 80, 3350e9, 989e12, 67e12, (9, 0)),
    Card("h200", "H200", 141, 4800e9, 989e12, 67e12, (9, 0)),
)
MOST = 1024  # GiB; a larger number must be the name of an unknown card


def find_gpu(text: str) -> Card | float:
    """Return a card of the table by its name, or a size in bytes. 24GiB, 24GB and 24 are all gibibytes.

    Raises ValueError with the known cards, also for a name that exists in two sizes.
    """
    asked = _key(text)
    if found := next((card for card in CARDS if asked in (_key(card.short), _key(card.name))), None):
        return found
    if several := [card.short for card in CARDS if asked == card.short.partition("-")[0]]:
        raise ValueError(f"{text!r} is {len(several)} sizes: write {' or '.join(several)}")
    size = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:Gi?B?)?\s*", text, flags=re.IGNORECASE)
    if size is None or not 0 < float(size[1]) <= MOST:
        names = ", ".join(card.short for card in CARDS)
        raise ValueError(f"{text!r} is neither a size nor a card in the table ({names}); write e.g. 24GiB")
    return float(size[1]) * GIB


def _key(name: str) -> str:
    """Normalize a name: "NVIDIA GeForce RTX 4090", "rtx4090" and "4090" have the same key."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia)?(geforce|tesla)?(rtx)?|gi?b$", "", plain)


def cards_of(gpu: float) -> tuple[Card, ...]:
    """Return the cards whose memory is nearest to a size, except those without bfloat16, which the plan assumes."""
    cards = [card for card in CARDS if card.capability >= BFLOAT16]
    nearest = min((card.size for card in cards), key=lambda size: abs(math.log(size * GIB / gpu)))
    return tuple(card for card in cards if card.size == nearest)
