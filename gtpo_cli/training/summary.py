"""A summary of a run's changes: the mean metrics over the first and the last twentieth of its steps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from gtpo_cli.tracking import reward_words

# The metrics a user asks for first: name, words, format.
_SUMMARISED = (
    ("train/accuracy_rate", "accuracy", "{:.1%}"),
    ("train/strict_format_rate", "strict format", "{:.1%}"),
    ("optim/loss", "loss", "{:z.4f}"),
    ("entropy/mean", "entropy", "{:.3f} nats"),
    ("completions/length_mean", "length", "{:.1f} tokens"),
)
_REWARD = re.compile(r"rewards/(.*)_mean")


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
        return f"{self.shown.format(self.first)} -> {self.shown.format(self.last)}"

    @property
    def span(self) -> str:
        """The averaged steps, in words."""
        return "the first and the last step" if self.steps == 1 else f"the first and the last {self.steps} steps"


def changes(rows: Sequence[Mapping[str, float]]) -> list[Change]:
    """Return the changes of the main metrics and of user rewards that at least two steps have."""
    rewards = dict.fromkeys(match[0] for row in rows for name in row if (match := _REWARD.fullmatch(name)))
    result: list[Change] = []
    called = [(name, reward_words(_REWARD.sub(r"\1", name)), "{:z.2f}") for name in rewards]
    for name, words, shown in (*_SUMMARISED, *called):
        if name == "optim/loss" and result:
            continue  # only the loss of SFT measures progress, a policy-gradient loss does not
        values = [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]
        if len(values) > 1:
            steps = math.ceil(len(values) / 20)
            result.append(Change(name, words, fmean(values[:steps]), fmean(values[-steps:]), steps, shown))
    return result
