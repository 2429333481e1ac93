"""What a run changed, from its metrics: the means over the first and the last twentieth of its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# What a user asks first, where the run has it: name of the metric, words, how it is shown.
SUMMARISED = (
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
    """Changes of the metrics in SUMMARISED, and of user rewards, that every step has; empty for less than two steps."""
    if len(rows) < 2:
        return []
    steps = math.ceil(len(rows) / 20)
    result: list[Change] = []
    for name, words, shown in (*SUMMARISED, *_user_rewards(rows[0])):
        if name == "optim/loss" and result:
            continue  # a policy-gradient loss says nothing about progress; only SFT's does
        if all(name in row for row in rows):
            first, last = (sum(row[name] for row in part) / len(part) for part in (rows[:steps], rows[-steps:]))
            result.append(Change(name, words, first, last, steps, shown))
    return result


def _user_rewards(row: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """As SUMMARISED: the metrics `rewards/<name>_mean`, called by their names."""
    names = [name for name in row if name.startswith("rewards/") and name.endswith("_mean")]
    return [(name, name.removeprefix("rewards/").removesuffix("_mean"), "{:.2f}") for name in names]
