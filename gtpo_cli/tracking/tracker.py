"""What a tracker is, and how the loop talks to all of them at once.

metrics.jsonl is the record of the run: when it cannot be written, the run stops with a GtpoError. Every other tracker
is a convenience: when one fails, it is switched off with one warning, and the run goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from gtpo_cli.text import describe
from gtpo_cli.tracking.jsonl import JsonlTracker
from gtpo_cli.tracking.metrics import find_metric

if TYPE_CHECKING:
    from gtpo_cli.tracking.display import ConsoleTracker


T = TypeVar("T", bound="Tracker")


class Tracker(Protocol):
    """Takes the metrics of finished steps somewhere. `metrics` holds any subset of the declared ones, unordered."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


TableRow = Mapping[str, str | float | None]  # of a table: by column; all rows have the same


@runtime_checkable
class TableTracker(Tracker, Protocol):
    """A tracker that takes tables too: completions and evaluations, a row each."""

    def log_table(self, step: int, name: str, rows: Sequence[TableRow]) -> None: ...


class Trackers(AbstractContextManager["Trackers"]):
    """The record, the display and any other trackers as one. A context manager that closes them all.

    `record` may raise GtpoError; `display` and `others` cannot end a run. `warn` shows one line to the user, in a quiet
    run as well, and must not raise; by default it goes through the `warnings` module.
    """

    def __init__(
        self,
        record: JsonlTracker,
        *,
        display: ConsoleTracker | None = None,
        others: Sequence[Tracker] = (),
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        self._record = record
        self._display = display
        self._optional: list[Tracker] = [*([display] if display else []), *others]
        self.warn = warn

    @property
    def position(self) -> int:
        """Bytes of metrics.jsonl up to the last logged step, for the checkpoint. They are on the disk on return."""
        return self._record.position

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics of one finished step to every tracker that still works.

        Raises ValueError on an undeclared metric, GtpoError when metrics.jsonl cannot be written.
        """
        for name in metrics:
            find_metric(name)
        self._record.log(step, metrics)
        self._notify(self._optional, step, lambda tracker: tracker.log(step, metrics))

    def log_table(self, step: int, name: str, rows: Sequence[TableRow]) -> None:
        """Hand a table of step `step`, whose metrics come later, to every tracker that takes tables."""
        takers = [tracker for tracker in self._optional if isinstance(tracker, TableTracker)]
        self._notify(takers if rows else [], step, lambda tracker: tracker.log_table(step, name, rows))

    def message(self, text: str) -> None:
        """Show a line to the user, above the progress display. Silent in a quiet run."""
        if self._display is not None:
            try:
                self._display.message(text)
            except Exception as error:  # noqa: BLE001 - as in log
                self._switch_off(self._display, error)

    def close(self) -> None:
        """Close all trackers, the display first, so that the terminal is restored whatever the others do."""
        try:
            for tracker in self._optional:
                try:
                    tracker.close()
                except Exception as error:  # noqa: BLE001 - as in log
                    self.warn(f"{_name(tracker)} could not be closed ({describe(error)}); it may miss the last steps")
        finally:
            self._optional.clear()
            self._display = None
            self._record.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _notify(self, trackers: Sequence[T], step: int, notify: Callable[[T], None]) -> None:
        for tracker in tuple(trackers):
            try:
                notify(tracker)
            except Exception as error:  # noqa: BLE001 - a tracker is foreign code, and no error in it is worth a run
                self._switch_off(tracker, error, since=f" from step {step} on")

    def _switch_off(self, tracker: Tracker, error: Exception, since: str = "") -> None:
        self._optional.remove(tracker)
        if tracker is self._display:
            self._display = None
        with suppress(Exception):  # it has failed and been reported: closing it can only help
            tracker.close()
        self.warn(f"{_name(tracker)} failed and is off{since} ({describe(error)}); metrics.jsonl has every step")


def _name(tracker: Tracker) -> str:
    behind = getattr(tracker, "tracker", tracker)  # of a BackgroundTracker
    return f"{type(behind).__name__.removesuffix('Tracker')} tracking"
