"""Progress of an evaluation or a sweep: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PLAIN_SECONDS = 30.0  # between two lines


@contextmanager
def count_progress(
    label: str, *, what: str = "problems", every: float = _PLAIN_SECONDS, quiet: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Yields `report(problems done, problems in all)`. The time left is reckoned from what was done since the start.

    `what`: the word for problems; `every`: least seconds between two plain lines.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from gtpo_cli.tracking.console import Console

    console = Console(stderr=True)
    if quiet:
        yield lambda done, total: None
    elif console.is_interactive:
        with Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn(what),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=console, transient=True, speed_estimate_period=600.0,
        ) as bar:  # fmt: skip
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield _Lines(label, what, every)


class _Lines:
    def __init__(self, label: str, what: str, every: float) -> None:
        self._label, self._what, self._every = label, what, every
        self._started: float | None = None
        self._first = 0
        self._said = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._started is None:
            self._started, self._first = now, done
        if done < total and now - self._said < self._every:
            return
        self._said = now
        new = done - self._first
        left = (now - self._started) / new * (total - done) if new else None
        print(
            f"{self._label}: {done} of {total} {self._what}" + (f", {duration(left)} left" if left else ""), flush=True
        )


def duration(seconds: float) -> str:
    """`1 h 05 min`, `3 min 20 s`, `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
