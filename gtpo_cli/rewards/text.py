"""Answers that are compared as text, not as mathematics: labels, JSON, code (`rewards.accuracy.equality: text`).

The same questions that `GradingAhead` and `EqualityWorkers` answer, without their processes: nothing to time out.
"""

from __future__ import annotations

from collections.abc import Sequence

from gtpo_cli.rewards.workers import Equality, Pair


def same_text(gold: str, predicted: str) -> bool:
    """Equal, character by character, but for how much white space stands where there is some. Empty equals nothing."""
    return bool(gold.split()) and gold.split() == predicted.split()


class TextEquality:
    """Compares at once, in this process."""

    def begin(self, gold: str, predicted: str, question: str | None = None) -> None:
        """Nothing to start."""

    def equal_many(self, pairs: Sequence[Pair]) -> list[Equality]:
        """For each (gold, predicted): are they the same text? A question plays no part."""
        return [Equality(same_text(pair[0], pair[1])) for pair in pairs]

    def usable_many(self, golds: Sequence[str]) -> list[bool]:
        """For each gold answer: is there any text?"""
        return [bool(gold.split()) for gold in golds]

    def forget(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing to end."""
