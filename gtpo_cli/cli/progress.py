"""The progress of an evaluation: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PLAIN_SECONDS = 30.0  # between two lines


@contextmanager
def problem_progress(label: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yields `report(problems done, problems in all)`. The time left is reckoned from what was done since the start."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if quiet:
        yield lambda done, total: None
    elif console.is_terminal:
        with Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("problems"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=console, transient=True, speed_estimate_period=600.0,
        ) as bar:  # fmt: skip
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield _Lines(label)


class _Lines:
    def __init__(self, label: str) -> None:
        self._label = label
        self._started: float | None = None
        self._first = 0
        self._said = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._started is None:
            self._started, self._first = now, done
        if done < total and now - self._said < _PLAIN_SECONDS:
            return
        self._said = now
        new = done - self._first
        left = (now - self._started) / new * (total - done) if new else None
        print(f"{self._label}: {done} of {total} problems" + (f", {_duration(left)} left" if left else ""), flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
