"""A share of the questions of one split, kept from training to test on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import SourceRecipe

Side = Literal["training", "test"]


def held_out_questions(questions: Iterable[str], share: float, seed: int, *, where: str) -> frozenset[str]:
    """That share of the different questions, at least one and never all, rounded to the nearest number.

    Which ones depends on the seed and the texts alone, so neither their order nor a question that stands there twice
    puts one on both sides. Raises DataError where there are fewer than two.
    """
    ranked = sorted(set(questions), key=lambda question: (_rank(question, seed), question))
    if len(ranked) < 2:
        raise DataError(f"{where}: has not two different questions, so none can be held out; set data.held_out to 0")
    return frozenset(ranked[: min(max(1, round(share * len(ranked))), len(ranked) - 1)])


def holds_nothing_out(source: SourceRecipe) -> bool:
    """Whether all of a source is trained on, and nothing of it is left to test on: one file without `held_out`."""
    return not source.held_out and source.path is not None and not Path(source.path).expanduser().is_dir()


def _rank(question: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{question}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
