"""Progress of an evaluation, a probe or a sweep: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gtpo_cli.cli.printing import say
from gtpo_cli.waiting import Waiting


@contextmanager
def count_progress(
    label: str, *, unit: str = "problem", each: bool = False, quiet: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Yield `report(done, total)`. With `each`, every call prints a plain line."""
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
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), MofNCompleteColumn(),
            TextColumn(f"{unit}s"), TimeElapsedColumn(), TextColumn("elapsed"), TimeRemainingColumn(),
            TextColumn("left"), console=console, transient=True, expand=True, speed_estimate_period=600.0,
        ) as bar:  # fmt: skip
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        with Waiting(say, label, unit=unit) as waiting:

            def report(done: int, total: int) -> None:
                waiting.count(done, total)
                if each:
                    say(waiting.so_far())

            yield report
