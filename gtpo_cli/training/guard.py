"""The guard against policy collapse (Section 4.2): entropy above ln 2 while the format degrades, and similar patterns.

Every rule compares the mean over the last `window` steps with the run's first window (start) and its best window so
far. So there is no alarm before the second window, and a value that was bad from the start does not count as collapse.
When a task's level changes, the accuracy rate has no best value until a window of that level is whole.

If all completions of a group have always earned the same, the run has not collapsed either: it never had a learning
signal. The guard warns once if no group of the first ten steps had any spread. In the second window it stops such a run
if `training.guard.action` is stop or rollback, since there is no good checkpoint to return to.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gtpo_cli.objective import LN_2
from gtpo_cli.recipe.schema import GuardRecipe

COLLAPSE, NO_SIGNAL = "policy collapse", "no learning signal"
MAX_ROLLBACKS = 2  # before the run stops
ROLLBACK_RATE = 0.5  # factor of the learning rate at each rollback
ACCURACY_DROP = 0.1  # drop of the accuracy rate that counts, if the rate also halves
ENTROPY_FACTOR = 3.0  # entropy above this many times its start counts like entropy above ln 2
LENGTH_FACTOR = 2.0  # growth of completion length that counts while format or accuracy falls
TRUNCATED_RISE = 0.3  # rise of the truncated share that counts
UNINFORMATIVE = 0.98  # share of groups with equal rewards that counts if it was once lower
FIRST_STEPS = 10  # a run without any reward spread gets a warning after these
_NEARLY_ALL_RIGHT = 0.5  # from this accuracy on, groups without spread mean that the task is learned, not lost
# The metrics of a step, or their means over a window, in the order of `Window`.
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


class Alarm(NamedTuple):
    """`kind`: COLLAPSE or NO_SIGNAL. `acts`: whether `training.guard.action` applies; otherwise it is a warning."""

    kind: str
    text: str
    acts: bool = True


class CollapseGuard:
    """Observes the metrics of each step and raises alarms. After an alarm it starts a new window."""

    def __init__(
        self,
        recipe: GuardRecipe,
        history: Iterable[Mapping[str, float]] = (),
        *,
        rewarded: bool = True,
        resting: bool = False,
    ) -> None:
        """`history`: metrics of the steps before a resume, oldest first. Their alarms are not repeated. `rewarded`:
        whether right answers are; `resting`: whether prompts that are always right rest, so that accuracy falls."""
        self._recipe, self._rewarded, self._resting = recipe, rewarded, resting
        self._levels: dict[str, float] = {}
        self._at_levels = 0  # steps since one changed
        self._steps: deque[Window] = deque(maxlen=recipe.window)
        self._start: Window | None = None
        self._best: Window | None = None  # the best window mean of each metric, from different windows
        self._taken = 0  # steps that count
        self._had_spread = self._told_no_signal = False
        for metrics in history:
            self.observe(metrics)

    def observe(self, metrics: Mapping[str, float]) -> list[Alarm]:
        """Take the metrics of a step and return the alarms. Steps without rewards (SFT or skipped) do not count."""
        step = Window(*(metrics.get(name, math.nan) for name in _METRICS))
        if not all(map(math.isfinite, step)):
            return []
        levels = {name: value for name, value in metrics.items() if name.endswith("/level")}
        self._at_levels = self._at_levels + 1 if levels == self._levels else 1
        self._levels = levels
        self._steps.append(step)
        self._taken += 1
        self._had_spread |= step.uninformative < 1
        seen = self._in_window()
        if self._taken == FIRST_STEPS and not (seen or self._had_spread or self._told_no_signal):
            seen = [self._no_signal(f"in the first {FIRST_STEPS} steps", self._means(), acts=False)]
        return seen

    def _means(self) -> Window:
        return Window(*map(statistics.fmean, zip(*self._steps, strict=True)))

    def _in_window(self) -> list[Alarm]:
        if len(self._steps) < self._recipe.window:
            return []
        now = self._means()
        if self._start is None or self._best is None:
            self._start = self._best = now
            return []
        over = f"over the last {self._recipe.window} steps"
        alike = self._rewarded and not self._resting and self._at_levels >= self._recipe.window
        best = self._best if alike else self._best._replace(accuracy=0.0)
        texts = _collapses(self._recipe, now, start=self._start, best=best, rewarded=self._rewarded)
        seen = [Alarm(COLLAPSE, f"{over} {text}") for text in texts]
        warned = self._told_no_signal and self._recipe.action == "warn"
        if not seen and not warned and self._never_had_signal(now):
            seen = [self._no_signal(f"{over}, as before,", now)]
        if seen:
            self._steps.clear()
        least = {name: min(getattr(self._best, name), getattr(now, name)) for name in ("truncated", "uninformative")}
        self._best = Window(*map(max, best, now))._replace(**least)
        if not alike:
            self._best = self._best._replace(accuracy=0.0)
        return seen

    def _never_had_signal(self, now: Window) -> bool:
        assert self._best is not None
        share = min(self._best.uninformative, now.uninformative)
        return share >= UNINFORMATIVE and not (self._rewarded and now.accuracy >= _NEARLY_ALL_RIGHT)

    def _no_signal(self, when: str, now: Window, *, acts: bool = True) -> Alarm:
        self._told_no_signal = True
        text = (
            f"{when} all completions earned the same in {now.uninformative:.2f} of the groups, so none was better; "
            f"{remedies(now.accuracy, now.truncated)}; gtpo try-reward shows the reward of each"
        )
        return Alarm(NO_SIGNAL, text, acts)


def remedies(accuracy: float, truncated: float) -> str:
    """Suggest remedies for groups without reward spread, given the right and the truncated share of completions."""
    if accuracy >= _NEARLY_ALL_RIGHT:
        return "try harder problems, or a higher rollout.temperature"
    longer = "a larger rollout.max_completion_tokens (most are truncated), " if truncated > 0.5 else ""
    return (
        f"try {longer}SFT first (objective.name: sft, then gtpo train --from RUN), rewards.format.mode: presence, a "
        "higher or lower rollout.temperature, or easier problems"
    )


def _collapses(recipe: GuardRecipe, now: Window, *, start: Window, best: Window, rewarded: bool) -> Iterator[str]:
    format_fell = best.strict_format - now.strict_format >= recipe.format_drop
    accuracy_fell = best.accuracy - now.accuracy >= ACCURACY_DROP and now.accuracy <= best.accuracy / 2
    lost = (
        f"the strict format rate fell from {best.strict_format:.2f} to {now.strict_format:.2f}"
        if format_fell
        else f"the accuracy rate fell from {best.accuracy:.2f} to {now.accuracy:.2f}"
    )
    climbed = now.entropy > LN_2 or now.entropy > ENTROPY_FACTOR * start.entropy
    if format_fell and climbed and now.entropy > start.entropy:
        yield f"the mean entropy is {now.entropy:.3f} nats (start {start.entropy:.3f}, ln 2 = {LN_2:.3f}) and {lost}"
    if now.truncated - best.truncated >= TRUNCATED_RISE:
        yield f"{now.truncated:.2f} of the completions reach the length limit (at best {best.truncated:.2f})"
    if now.length >= LENGTH_FACTOR * start.length and (format_fell or accuracy_fell):
        yield f"completions have {now.length:.0f} tokens (start {start.length:.0f}) and {lost}"
    if rewarded and now.uninformative >= UNINFORMATIVE > best.uninformative and now.accuracy < _NEARLY_ALL_RIGHT:
        yield (
            f"{now.uninformative:.2f} of the groups have equal rewards, at an accuracy rate of {now.accuracy:.2f}, so "
            "nothing is learned"
        )
    if accuracy_fell:
        yield f"the accuracy rate fell from {best.accuracy:.2f} to {now.accuracy:.2f}"
