"""Progress of an evaluation, a probe or a sweep: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gtpo_cli.cli.printing import say
from gtpo_cli.terminal.waiting import Waiting


class Report(Protocol):
    def __call__(self, done: int, total: int, now: str = "") -> None:
        """Report how many are done, and words for what is going on."""


@contextmanager
def count_progress(label: str, *, unit: str = "problem", each: bool = False, quiet: bool = False) -> Iterator[Report]:
    """Yield the function that reports. With `each`, a plain line is printed whenever more are done."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from gtpo_cli.terminal.console import Console

    console = Console(stderr=True)
    if quiet:
        yield _nothing
    elif console.is_interactive:
        with Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), MofNCompleteColumn(),
            TextColumn(f"{unit}s"), TimeElapsedColumn(), TextColumn("elapsed"), TimeRemainingColumn(),
            TextColumn("left"), console=console, transient=True, expand=True, speed_estimate_period=600.0,
        ) as bar:  # fmt: skip
            task = bar.add_task(label, total=None)

            def move(done: int, total: int, now: str = "") -> None:
                bar.update(task, completed=done, total=total, description=f"{label}: {now}" if now else label)

            yield move
    else:
        with Waiting(say, label, unit=unit) as waiting:
            said = -1

            def count(done: int, total: int, now: str = "") -> None:
                nonlocal said
                waiting.count(done, total, now)
                if each and done != said:
                    said = done
                    say(waiting.so_far())

            yield count


def _nothing(done: int, total: int, now: str = "") -> None:
    pass
