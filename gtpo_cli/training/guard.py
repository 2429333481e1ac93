"""Watches a run for policy collapse (Section 4.2): entropy past ln 2 while the format is being lost."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping

from gtpo_cli.objective import LN_2
from gtpo_cli.recipe.schema import GuardRecipe


class CollapseGuard:
    """Compares the last `window` steps with the `window` steps before them.

    Collapse is: mean entropy (nats) over the last window above ln 2, and the strict format rate lower by at least
    `format_drop` than in the window before. After an alarm the windows start anew.
    """

    def __init__(self, recipe: GuardRecipe, history: Iterable[Mapping[str, float]] = ()) -> None:
        """`history`: metrics of the steps before a resume, oldest first."""
        self._recipe = recipe
        self._seen: deque[tuple[float, float]] = deque(maxlen=2 * recipe.window)
        for metrics in history:
            self.observe(metrics)

    def observe(self, metrics: Mapping[str, float]) -> str | None:
        """Take the metrics of a step; returns what was seen, in words and numbers, when it is a collapse."""
        if "train/strict_format_rate" not in metrics:
            return None
        self._seen.append((metrics["entropy/mean"], metrics["train/strict_format_rate"]))
        window = self._recipe.window
        if len(self._seen) < 2 * window:
            return None
        seen = list(self._seen)
        entropy = statistics.fmean(h for h, _ in seen[window:])
        before, now = (statistics.fmean(rate for _, rate in part) for part in (seen[:window], seen[window:]))
        if entropy <= LN_2 or before - now < self._recipe.format_drop:
            return None
        self._seen.clear()
        return (
            f"policy collapse: over the last {window} steps the mean entropy is {entropy:.3f} nats (ln 2 = {LN_2:.3f}) "
            f"and the strict format rate fell from {before:.2f} to {now:.2f}"
        )
