"""The progress of a run on the terminal: a display that updates in place, or plain lines where there is no terminal.

`log` only takes the figures in; a thread of rich's draws them twice a second, so that fast steps pay nothing for
looking at them. All widths are fixed: nothing moves but the figures.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, Any

import rich.console
from rich.console import ConsoleOptions, Group, RenderableType
from rich.constrain import Constrain
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
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

from gtpo_cli.recipe.schema import LN_2, FilterRecipe, filter_is_on
from gtpo_cli.text import printable
from gtpo_cli.waits import Waiting

REFRESHES_PER_SECOND = 2
WINDOW = 20  # steps in the column "last 20"
TREND_CELLS = 20  # parts of the run in the column "whole run"
MAX_WIDTH = 80
CELL_WIDTH = 20
PLAIN_SECONDS = 300.0  # without a terminal, a line at least this often, however slow the steps
BARS = "▁▂▃▄▅▆▇█"
WARNING = "bold magenta"
# Colours that can be read on a light and on a dark background: neither yellow nor cyan, which rich would take.
THEME = Theme(
    {
        "bar.complete": "magenta", "bar.finished": "green", "bar.pulse": "magenta", "bar.back": "grey50",
        "progress.percentage": "none", "progress.download": "none", "progress.elapsed": "none",
        "progress.remaining": "none",
    }
)  # fmt: skip


class Console(rich.console.Console):
    """rich's console, which lets no text steer the terminal: what rich itself says to it is marked as control.

    Text is shown as it is: brackets and colons in it are no markup, and numbers get no colour.
    """

    def __init__(self, **options: Any) -> None:
        # `!gtpo ...` in a notebook has a terminal, of which the page shows colours, but nothing that updates in place
        in_notebook = "JPY_PARENT_PID" in os.environ
        plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "theme": THEME}
        super().__init__(force_interactive=False if in_notebook else None, **plain | options)

    @property
    def file(self) -> IO[str]:
        """The stream itself. A live display puts a proxy around sys.stdout, which may be a proxy already
        (gtpo_cli.cli.streams.CleanStream); rich looks through one of them."""
        file = super().file
        while (below := getattr(file, "rich_proxied_file", None)) is not None:
            file = below
        return file

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class _Shown:
    """A metric on the display. `top` is the value of a full bar; None = the highest so far."""

    label: str
    metric: str
    show: Callable[[float], str]
    top: float | None = None
    plain: bool = True


_ROWS = (
    _Shown("reward", "train/reward_mean", _short),
    _Shown("accuracy", "train/accuracy_rate", _percent, top=1.0),
    _Shown("strict format", "train/strict_format_rate", _percent, top=1.0),
    _Shown("loss", "optim/loss", "{:.4f}".format),
    _Shown("entropy", "entropy/mean", "{:.3f}".format, top=LN_2),
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
    """Shows a run. It works with any subset of the metrics: what has never been logged is not shown.

    `start_step` is the last step already done (a resumed run). `note` is said beside the entropy. Where `console` is no
    terminal, or one without Unicode, it prints lines instead of the display.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        start_step: int = 0,
        note: str = "",
        console: rich.console.Console,
    ) -> None:
        self._total = total_steps
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
        # The estimate of the time left looks at the last 1000 steps or this many seconds.
        self._progress = Progress(
            TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=None), TaskProgressColumn(),
            TimeElapsedColumn(), TextColumn("elapsed"), TimeRemainingColumn(), TextColumn("left"),
            console=console, speed_estimate_period=3600.0, expand=True,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=total_steps, completed=start_step)
        self._live: Live | None = None
        self._last_line = time.monotonic()
        self._lines_printed = 0
        if console.is_interactive and not ascii_only:
            self._live = Live(get_renderable=self.frame, console=console, refresh_per_second=REFRESHES_PER_SECOND)
            self._live.start(refresh=True)
        elif self._note:
            self.message(f"entropy is in nats; {self._note}")
        self._first_step = ExitStack()  # until it has been logged, plain lines say how long it takes
        if self._live is None:
            self._first_step.enter_context(Waiting(self.message, f"step {start_step + 1}"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in a finished step."""
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
            self.message(self._line(step))

    def message(self, text: str) -> None:
        """Print a line above the display (or as the next line where there is no display). Raises OSError."""
        print_line(self._console, text)

    def close(self) -> None:
        """Draw the last state and give the terminal back. Closing twice is harmless."""
        self._first_step.close()
        if self._live is not None:
            self._live.stop()

    def frame(self) -> RenderableType:
        """The display as it is now."""
        with self._lock:
            width = min(self._console.width, MAX_WIDTH)
            lines = self._row_lines() + self._cell_lines(max(1, width // CELL_WIDTH))
            if not lines:
                lines = [_line_of(f"step {self._start_step + 1} is under way", style="dim")]
            return Group(Constrain(self._progress.get_renderable(), width), *lines)

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
            lines.append(line)
        return lines

    def _value(self, shown: _Shown) -> str:
        value = self._latest.get(shown.metric)
        if value is None:
            return "-"
        spread = self._latest.get("train/reward_std") if shown.metric == "train/reward_mean" else None
        return shown.show(value) + (f" {self._plus_minus} {_short(spread)}" if spread is not None else "")

    def _style(self, shown: _Shown) -> str:
        value = self._latest.get(shown.metric, 0.0)
        if not math.isfinite(value):
            return "bold red"
        return WARNING if shown.metric == "entropy/mean" and value > LN_2 else "bold"

    def _is_due(self, step: int) -> bool:
        every = 1 if self._total <= 50 else round(self._total / 50)
        late = time.monotonic() - self._last_line >= PLAIN_SECONDS
        return self._lines_printed == 0 or step % every == 0 or step >= self._total or late

    def _line(self, step: int) -> str:
        known = [shown for shown in (*_ROWS, *_CELLS) if shown.plain and shown.metric in self._latest]
        parts = [f"step {step:>{len(str(self._total))}}/{self._total}"]
        parts += [f"{shown.label} {self._value(shown)}" for shown in known]
        left = self._progress.tasks[0].time_remaining
        if left is not None and step < self._total:
            parts.append(f"left {timedelta(seconds=int(left))}")
        return "  ".join(parts)


class Trend:
    """A metric over the run: the mean of each of (at most) 20 equal parts of its steps."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._cells = min(TREND_CELLS, total_steps)
        self._sums = [0.0] * self._cells
        self._counts = [0] * self._cells

    def add(self, step: int, value: float) -> None:
        """Take in the value of `step` (counted from 1). A value that is not finite is left out."""
        if math.isfinite(value):
            cell = min(self._cells - 1, max(0, step - 1) * self._cells // self._total)
            self._sums[cell] += value
            self._counts[cell] += 1

    def draw(self, top: float | None) -> Text:
        """One bar a part, from 0 (or the lowest mean, if that is below) to `top` (or the highest mean, if above)."""
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


def print_line(console: rich.console.Console, text: str, style: str = "") -> None:
    """Print `text` as one line. Raises OSError when the terminal or the reader of the pipe is gone."""
    try:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
    except SystemExit as end:  # what rich makes of a broken pipe; nobody reading along is no reason to stop training
        raise BrokenPipeError("nobody reads the output any more") from end


def entropy_note(initial_entropy: float | None, recipe: FilterRecipe) -> str:
    """What the entropy is to be compared with, e.g. "ln 2 = 0.693, at the start 0.162, filter on"; "" for SFT, which
    has no <H>_ini (nats)."""
    if initial_entropy is None:
        return ""
    above = "" if math.isclose(recipe.threshold, LN_2) else f" above {recipe.threshold:.3f}"
    state = f"on{above}" if filter_is_on(initial_entropy, recipe.enabled) else "off"
    return f"ln 2 = {LN_2:.3f}, at the start {initial_entropy:.3f}, filter {state}"


def _line_of(text: str = "", style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="crop")
