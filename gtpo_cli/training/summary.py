"""What a run changed, from its metrics: the means over the first and the last twentieth of its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# What a user asks first, where the run has it: name of the metric, words, how it is shown.
_SUMMARISED = (
    ("train/accuracy_rate", "accuracy", "{:.1%}"),
    ("train/strict_format_rate", "strict format", "{:.1%}"),
    ("optim/loss", "loss", "{:.4f}"),
    ("entropy/mean", "entropy", "{:.3f} nats"),
    ("completions/length_mean", "length", "{:.1f} tokens"),
)


@dataclass(frozen=True, slots=True)
class Change:
    """Means of one metric over the first and the last `steps` steps."""

    name: str
    words: str
    first: float
    last: float
    steps: int
    shown: str

    def __str__(self) -> str:
        span = "the first and last step" if self.steps == 1 else f"the first and last {self.steps} steps"
        return f"{self.shown.format(self.first)} -> {self.shown.format(self.last)} (means of {span})"


def changes(rows: Sequence[Mapping[str, float]]) -> list[Change]:
    """Changes of the main metrics, and of user rewards, that every step has; empty for less than two steps."""
    if len(rows) < 2:
        return []
    steps = math.ceil(len(rows) / 20)
    user_rewards = [name for name in rows[0] if name.startswith("rewards/") and name.endswith("_mean")]
    named = [(name, name.removeprefix("rewards/").removesuffix("_mean"), "{:.2f}") for name in user_rewards]
    result: list[Change] = []
    for name, words, shown in (*_SUMMARISED, *named):
        if name == "optim/loss" and result:
            continue  # a policy-gradient loss says nothing about progress; only SFT's does
        if all(name in row for row in rows):
            first, last = (sum(row[name] for row in part) / len(part) for part in (rows[:steps], rows[-steps:]))
            result.append(Change(name, words, first, last, steps, shown))
    return result
