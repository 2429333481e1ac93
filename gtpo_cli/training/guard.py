"""Watches a run for policy collapse (Section 4.2): entropy past ln 2 while the format is being lost, and its relatives.

Every rule compares the mean over the last `window` steps with what the run had before: its first window (start) and the
best window so far. So nothing is said before the second window, and a figure that is bad from the start is no alarm.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gtpo_cli.objective import LN_2
from gtpo_cli.recipe.schema import GuardRecipe

_NEARLY_ALL_RIGHT = 0.5  # accuracy from which on groups without spread mean that the task is learned, not lost
# Of a step, or means over a window of steps, in the order of `Window`.
_METRICS = (
    "entropy/mean", "train/strict_format_rate", "train/accuracy_rate", "completions/truncated_share",
    "completions/length_mean", "groups/uninformative_share",
)  # fmt: skip


class Window(NamedTuple):
    entropy: float  # nats
    strict_format: float
    accuracy: float
    truncated: float
    length: float  # tokens
    uninformative: float


class CollapseGuard:
    """Takes the metrics of one step after the other and says what it sees. After an alarm the window starts anew."""

    def __init__(self, recipe: GuardRecipe, history: Iterable[Mapping[str, float]] = ()) -> None:
        """`history`: metrics of the steps before a resume, oldest first; what was seen in them is not said again."""
        self._recipe = recipe
        self._steps: deque[Window] = deque(maxlen=recipe.window)
        self._start: Window | None = None
        self._best: Window | None = None  # of each figure the best window's, whenever that was
        for metrics in history:
            self.observe(metrics)

    def observe(self, metrics: Mapping[str, float]) -> list[str]:
        """Take the metrics of a step; returns what was seen, each in words and numbers. Steps without rewards (SFT, or
        skipped ones) do not count."""
        step = Window(*(metrics.get(name, math.nan) for name in _METRICS))
        if not all(map(math.isfinite, step)):
            return []
        self._steps.append(step)
        if len(self._steps) < self._recipe.window:
            return []
        now = Window(*map(statistics.fmean, zip(*self._steps, strict=True)))
        if self._start is None or self._best is None:
            self._start = self._best = now
            return []
        seen = list(_collapses(self._recipe, now, start=self._start, best=self._best))
        if seen:
            self._steps.clear()
        self._best = Window(*map(max, self._best, now))._replace(truncated=min(self._best.truncated, now.truncated))
        return [f"over the last {self._recipe.window} steps {text}" for text in seen]


def _collapses(recipe: GuardRecipe, now: Window, *, start: Window, best: Window) -> Iterator[str]:
    format_fell = best.strict_format - now.strict_format >= recipe.format_drop
    accuracy_fell = best.accuracy - now.accuracy >= recipe.accuracy_drop and now.accuracy <= best.accuracy / 2
    lost = (
        f"the strict format rate fell from {best.strict_format:.2f} to {now.strict_format:.2f}"
        if format_fell
        else f"the accuracy rate fell from {best.accuracy:.2f} to {now.accuracy:.2f}"
    )
    climbed = now.entropy > LN_2 or now.entropy > recipe.entropy_factor * start.entropy
    if format_fell and climbed and now.entropy > start.entropy:
        yield f"the mean entropy is {now.entropy:.3f} nats (start {start.entropy:.3f}, ln 2 = {LN_2:.3f}) and {lost}"
    if now.truncated - best.truncated >= recipe.truncated_rise:
        yield f"{now.truncated:.2f} of the completions run into the length limit (at best {best.truncated:.2f})"
    if now.length >= recipe.length_factor * start.length and (format_fell or accuracy_fell):
        yield f"completions have {now.length:.0f} tokens (start {start.length:.0f}) and {lost}"
    if now.uninformative >= recipe.uninformative_share and now.accuracy < _NEARLY_ALL_RIGHT:
        yield (
            f"the rewards of a group are all equal in {now.uninformative:.2f} of the groups, at an accuracy rate of "
            f"{now.accuracy:.2f}: nothing is learned"
        )
    if accuracy_fell:
        yield f"the accuracy rate fell from {best.accuracy:.2f} to {now.accuracy:.2f}"
