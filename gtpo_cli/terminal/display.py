"""The progress of a run on the terminal: a display that updates in place, or plain lines without a terminal.

`log` only stores the numbers. A thread of rich draws them twice a second, so the display does not slow down fast steps.
All widths are fixed, so only the numbers change.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta

import rich.console
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.control import Control
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import ControlType
from rich.text import Text

from gtpo_cli.entropy_filter import LN_2, filter_is_on
from gtpo_cli.recipe.schema import FilterRecipe
from gtpo_cli.terminal.console import WARNING, Console, print_line
from gtpo_cli.terminal.signals import Waiting
from gtpo_cli.text import folded

REFRESHES_PER_SECOND = 2
WINDOW = 20  # steps in the column "last 20"
TREND_CELLS = 20  # parts of the run in the column "whole run"
MAX_WIDTH = 80
CELL_WIDTH = 20
PLAIN_SECONDS = 300.0  # without a terminal, print a line at least this often
BARS = "▁▂▃▄▅▆▇█"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _short(value: float) -> str:
    return f"{value:z.2f}" if abs(value) < 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class _Shown:
    """A metric on the display. `top`: the value of a full bar; None: the highest value so far."""

    label: str
    metric: str
    show: Callable[[float], str]
    top: float | None = None
    plain: bool = True


_ROWS = (
    _Shown("reward", "train/reward_mean", _short),
    _Shown("accuracy", "train/accuracy_rate", _percent, top=1.0),
    _Shown("strict format", "train/strict_format_rate", _percent, top=1.0),
    _Shown("loss", "optim/loss", "{:z.4f}".format),
    _Shown("entropy", "entropy/mean", "{:z.3f}".format, top=LN_2),
)
_CELLS = (
    _Shown("filtered", "entropy/filtered_share", _percent),
    _Shown("conflict", "conflict/share", _percent),
    _Shown("truncated", "completions/truncated_share", _percent),
    _Shown("length", "completions/length_mean", "{:,.1f}".format),
    _Shown("grad norm", "optim/grad_norm", "{:.3g}".format),
    _Shown("tokens/s", "speed/tokens_per_second", "{:,.0f}".format),
    _Shown("KL", "policy/kl", "{:.3g}".format),
    _Shown("lr", "optim/learning_rate", "{:.2e}".format, plain=False),
    _Shown("peak mem", "memory/peak_bytes", lambda size: f"{size / 1e9:.1f} GB", plain=False),
)


class ConsoleTracker:
    """Shows a run. It works with any subset of the metrics and hides those that were never logged.

    `name`: the run's name. `start_step`: the last step already done in a resumed run. `note`: text about the entropy.
    If `console` is not a terminal with Unicode, it prints lines instead of the display. In a notebook it rewrites one
    line.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        name: str = "",
        start_step: int = 0,
        note: str = "",
        console: rich.console.Console,
    ) -> None:
        self._total = total_steps
        self._name = name
        self._start_step = start_step
        self._console = console
        ascii_only = console.options.ascii_only
        self._plus_minus = "+-" if ascii_only else "±"
        self._note = note
        self._lock = threading.Lock()  # log and the drawing thread
        self._latest: Mapping[str, float] = {}
        self._recent: dict[str, deque[float]] = {}
        self._trends: dict[str, Trend] = {}
        self._seen: set[str] = set()
        # The estimate of the time left uses the last 1000 steps or this many seconds.
        self._progress = Progress(
            TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=None), TaskProgressColumn(),
            TimeElapsedColumn(), TextColumn("elapsed"), TimeRemainingColumn(), TextColumn("left"),
            console=console, speed_estimate_period=3600.0, expand=True,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=total_steps, completed=start_step)
        self._live: Live | None = None
        self._answer = ""  # to a signal
        self._last_line = time.monotonic()
        self._lines_printed = 0
        self._on_page = isinstance(console, Console) and console.is_page
        self._line_is_open = False
        if console.is_interactive and not ascii_only:
            self._live = Live(get_renderable=self.frame, console=console, refresh_per_second=REFRESHES_PER_SECOND)
            self._live.start(refresh=True)
        elif self._note:
            self.message(f"entropy is in nats; {self._note}")
        self._first_step = ExitStack()  # plain lines report how long it takes until it is logged
        if self._live is None:
            self._first_step.enter_context(Waiting(self.message, f"step {start_step + 1}"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a finished step."""
        self._first_step.close()
        with self._lock:
            self._latest = dict(metrics)
            self._seen.update(metrics)
            for row in _ROWS:
                if (value := metrics.get(row.metric)) is not None:
                    self._recent.setdefault(row.metric, deque(maxlen=WINDOW)).append(value)
                    self._trends.setdefault(row.metric, Trend(self._total)).add(step, value)
            self._progress.update(self._task, completed=step)
        if self._live is None and self._is_due(step):
            self._lines_printed += 1
            self._last_line = time.monotonic()
            line = self._line(step)
            if self._on_page:
                self._console.control(Control(ControlType.CARRIAGE_RETURN))
                self._console.print(line.ljust(MAX_WIDTH - 1), end="", soft_wrap=True)
                self._line_is_open = True
            else:
                self.message(line)

    def message(self, text: str) -> None:
        """Print a line above the display, or as the next line without a display. Raises OSError."""
        self._end_line()
        print_line(self._console, text)

    def answer(self, text: str) -> bool:
        """Show the answer to a signal in the display, from its next refresh on. Return False without a display.

        A signal handler calls this, so it neither prints nor waits for a lock.
        """
        self._answer = text
        return self._live is not None

    def _end_line(self) -> None:
        if self._line_is_open:
            print_line(self._console, "")
            self._line_is_open = False

    def close(self) -> None:
        """Draw the last state and release the terminal. Closing twice is harmless."""
        self._first_step.close()
        with suppress(OSError):
            self._end_line()
        self._answer = ""  # what it announced has happened
        if self._live is not None:
            self._live.stop()

    def frame(self) -> RenderableType:
        """Render the current display."""
        with self._lock:
            width = min(self._console.width, MAX_WIDTH)
            lines = self._row_lines() + self._cell_lines(max(1, width // CELL_WIDTH))
            if not lines:
                lines = [_line_of(f"step {self._start_step + 1} is under way", style="dim")]
            title = [_line_of(self._name, style="bold")] if self._name else []
            answer = [Text(folded(self._answer, width), style=WARNING)] if self._answer else []
            return Group(*title, *answer, Constrain(self._progress.get_renderable(), width), *lines)

    def _row_lines(self) -> list[Text]:
        rows = [row for row in _ROWS if row.metric in self._seen]
        if not rows:
            return []
        lines = [_line_of(f"{'':14}{'this step':>13}{'last ' + str(WINDOW):>10}  whole run", style="dim")]
        for row in rows:
            recent = self._recent[row.metric]
            line = _line_of(f"{row.label:<14}")
            line.append(f"{self._value(row):>13}", style=self._style(row))
            line.append(f"{row.show(sum(recent) / len(recent)):>10}  ")
            line.append_text(self._trends[row.metric].draw(row.top))
            lines.append(line)
        if self._note and "entropy/mean" in self._seen:
            lines.append(_line_of(f"{'':14}{self._note}", style="dim"))
        return lines

    def _cell_lines(self, columns: int) -> list[Text]:
        cells = [cell for cell in _CELLS if cell.metric in self._seen]
        lines = []
        for first in range(0, len(cells), columns):
            line = _line_of()
            for cell in cells[first : first + columns]:
                line.append(f"{cell.label:<10}")
                line.append(f"{self._value(cell):>8}  ", style=self._style(cell))
            line.rstrip()  # the terminal's ^C then fits behind the last line and does not move the display
            lines.append(line)
        return lines

    def _value(self, shown: _Shown) -> str:
        value = self._latest.get(shown.metric)
        if value is None:
            return "-"
        spread = self._latest.get("train/reward_std") if shown.metric == "train/reward_mean" else None
        spread = None if self._on_page else spread
        return shown.show(value) + (f" {self._plus_minus} {_short(spread)}" if spread is not None else "")

    def _style(self, shown: _Shown) -> str:
        value = self._latest.get(shown.metric, 0.0)
        if not math.isfinite(value):
            return "bold red"
        return WARNING if shown.metric == "entropy/mean" and value > LN_2 else "bold"

    def _is_due(self, step: int) -> bool:
        if self._lines_printed == 0 or step >= self._total:
            return True
        waited = time.monotonic() - self._last_line
        if self._on_page:
            return waited >= 1 / REFRESHES_PER_SECOND
        every = 1 if self._total <= 50 else round(self._total / 50)
        return step % every == 0 or waited >= PLAIN_SECONDS

    def _line(self, step: int) -> str:
        known = [shown for shown in (*_ROWS, *_CELLS) if shown.plain and shown.metric in self._latest]
        parts = [f"step {step:>{len(str(self._total))}}/{self._total}"]
        parts += [f"{shown.label} {self._value(shown)}" for shown in known]
        left = self._progress.tasks[0].time_remaining
        last = [f"left {timedelta(seconds=int(left))}"] if left is not None and step < self._total else []
        while self._on_page and len("  ".join(parts + last)) >= MAX_WIDTH:
            parts.pop()
        return "  ".join(parts + last)


class Trend:
    """A metric over the run: the mean of each of (at most) 20 equal parts of its steps."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._cells = min(TREND_CELLS, total_steps)
        self._sums = [0.0] * self._cells
        self._counts = [0] * self._cells

    def add(self, step: int, value: float) -> None:
        """Add the value of `step` (counted from 1). A value that is not finite is ignored."""
        if math.isfinite(value):
            cell = min(self._cells - 1, max(0, step - 1) * self._cells // self._total)
            self._sums[cell] += value
            self._counts[cell] += 1

    def draw(self, top: float | None) -> Text:
        """Draw a bar for each part, from 0 (or a lower mean) to `top` (or a higher mean)."""
        means = [total / count if count else None for total, count in zip(self._sums, self._counts, strict=True)]
        known = [mean for mean in means if mean is not None]
        low, high = min([0.0, *known]), max([*known, *([top] if top else [])], default=0.0)
        text = Text(style="magenta")
        for mean in means:
            if mean is None:
                text.append("·", style="dim")
            else:
                share = (mean - low) / (high - low) if high > low else 0.0
                text.append(BARS[min(len(BARS) - 1, int(share * len(BARS)))])
        return text


def entropy_note(initial_entropy: float | None, recipe: FilterRecipe) -> str:
    """Return reference values for the entropy, e.g. "ln 2 = 0.693, at the start 0.162, filter on".

    It is "" for SFT, which has no <H>_ini (nats).
    """
    if initial_entropy is None:
        return ""
    above = "" if math.isclose(recipe.threshold, LN_2) else f" above {recipe.threshold:.3f}"
    state = f"on{above}" if filter_is_on(initial_entropy, recipe.enabled) else "off"
    return f"ln 2 = {LN_2:.3f}, at the start {initial_entropy:.3f}, filter {state}"


def _line_of(text: str = "", style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="crop")
