"""The interface of a tracker, and an object that drives all of them at once.

metrics.jsonl is the record of the run. If it cannot be written, the run stops with a GtpoError. If any other tracker
fails, it is switched off with one warning, and the run continues.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from gtpo_cli.terminal.waiting import say_at_once
from gtpo_cli.text import describe
from gtpo_cli.tracking.jsonl import JsonlTracker
from gtpo_cli.tracking.metrics import find_metric

if TYPE_CHECKING:
    from gtpo_cli.terminal.display import ConsoleTracker


T = TypeVar("T", bound="Tracker")


class Tracker(Protocol):
    """Records the metrics of finished steps. `metrics` holds any subset of the declared ones, unordered."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


TableRow = Mapping[str, str | float | None]  # values by column; all rows of a table have the same columns


@runtime_checkable
class TableTracker(Tracker, Protocol):
    """A tracker that also takes tables of completions and evaluations."""

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
        """Bytes of metrics.jsonl up to the last logged step, flushed to disk, for the checkpoint."""
        return self._record.position

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics of one finished step to every tracker that still works.

        Raises ValueError on an undeclared metric, GtpoError if metrics.jsonl cannot be written.
        """
        for name in metrics:
            find_metric(name)
        self._record.log(step, metrics)
        self._notify(self._optional, step, lambda tracker: tracker.log(step, metrics))

    def log_table(self, step: int, name: str, rows: Sequence[TableRow]) -> None:
        """Pass a table of step `step`, whose metrics come later, to every tracker that takes tables."""
        takers = [tracker for tracker in self._optional if isinstance(tracker, TableTracker)]
        self._notify(takers if rows else [], step, lambda tracker: tracker.log_table(step, name, rows))

    def message(self, text: str) -> None:
        """Show a line to the user, above the progress display. Silent in a quiet run."""
        if self._display is not None:
            try:
                self._display.message(text)
            except Exception as error:  # noqa: BLE001 - as in log
                self._switch_off(self._display, error)

    def answer(self, text: str) -> None:
        """Show the answer to a signal: in the live display, or else at once on standard error."""
        if self._display is None or not self._display.answer(text):
            say_at_once(text)

    def close(self) -> None:
        """Close all trackers, the display first, so that the terminal is restored in any case."""
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
            except Exception as error:  # noqa: BLE001 - a tracker is foreign code, whose errors must not end a run
                self._switch_off(tracker, error, since=f" from step {step} on")

    def _switch_off(self, tracker: Tracker, error: Exception, since: str = "") -> None:
        self._optional.remove(tracker)
        if tracker is self._display:
            self._display = None
        with suppress(Exception):  # its failure is already reported
            tracker.close()
        self.warn(f"{_name(tracker)} failed and is off{since} ({describe(error)}); metrics.jsonl has every step")


def _name(tracker: Tracker) -> str:
    behind = getattr(tracker, "tracker", tracker)  # of a BackgroundTracker
    return f"{type(behind).__name__.removesuffix('Tracker')} tracking"
