"""The built-in task: chains of three one-digit additions and subtractions, solved by their running sums.

The question is "3+8-2+5". The worked solution does one operation at a time: "3+8=11 11-2=9 9+5=14". The gold answer is
the last sum. There are 10^4 * 2^3 = 80,000 such questions. One in twenty, chosen by a hash of its text, is held out for
`test`, so no seed and no count can put a test question into `train`. A character-level model needs about 37 tokens for
a completion: one per character and one per tag name.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
import re
from collections.abc import Iterator
from typing import ClassVar

HELD_OUT_ONE_IN = 20


class Arithmetic:
    """The task: all questions of a split, in an order drawn from the seed; the test's order is always the same."""

    counts: ClassVar = {"train": 4800, "test": 500}

    def problems(self, split: str, seed: int) -> Iterator[dict[str, str]]:
        pool = list(_questions()[split == "test"])
        random.Random(seed if split == "train" else 0).shuffle(pool)
        for question in pool:
            yield {
                "question": question,
                "answer": str(running_sums(question)[-1]),
                "solution": worked_solution(question),
            }


def running_sums(question: str) -> list[int]:
    """Return the sum after each operation: "3+8-2+5" -> [11, 9, 14]."""
    first, *terms = (int(term) for term in re.findall(r"[+-]?\d", question))
    return list(itertools.accumulate(terms, initial=first))[1:]


def worked_solution(question: str) -> str:
    """Write one operation at a time: "3+8-2+5" -> "3+8=11 11-2=9 9+5=14"."""
    first, *terms = re.findall(r"[+-]?\d", question)
    steps, before = [], first
    for term, after in zip(terms, running_sums(question), strict=True):
        steps.append(f"{before}{term}={after}")
        before = str(after)
    return " ".join(steps)


@functools.cache  # training needs both
def _questions() -> tuple[list[str], list[str]]:
    """List the training questions and the held-out questions."""
    digits, signs = "0123456789", "+-"
    found: tuple[list[str], list[str]] = [], []
    for question in map("".join, itertools.product(digits, signs, digits, signs, digits, signs, digits)):
        found[_is_held_out(question)].append(question)
    return found


def _is_held_out(question: str) -> bool:
    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0
