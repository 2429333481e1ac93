"""What a tracker is, and how the loop talks to all of them at once.

metrics.jsonl is the record of the run: when it cannot be written, the run stops with a GtpoError. Every other tracker
is a convenience: when one fails, it is switched off with one warning, and the run goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from gtpo_cli.tracking.jsonl import JsonlTracker
from gtpo_cli.tracking.metrics import check_metrics

if TYPE_CHECKING:
    from gtpo_cli.tracking.console import ConsoleTracker


class Tracker(Protocol):
    """Takes the metrics of finished steps somewhere. `metrics` holds any subset of the declared ones, unordered."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Trackers:
    """The record, the display and any other trackers as one. A context manager that closes them all.

    `record` may raise GtpoError; `display` and `others` cannot end a run. `warn` shows one line to the user and must
    not raise; by default it goes through the `warnings` module.
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
        self._show_warning = warn

    @property
    def position(self) -> int:
        """Bytes of metrics.jsonl up to the last logged step, for the checkpoint. They are on the disk on return."""
        return self._record.position

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics of one finished step to every tracker that still works.

        Raises ValueError on an undeclared metric, GtpoError when metrics.jsonl cannot be written.
        """
        check_metrics(metrics)
        self._record.log(step, metrics)
        for tracker in tuple(self._optional):
            try:
                tracker.log(step, metrics)
            except Exception as error:  # noqa: BLE001 - a tracker is foreign code, and no error in it is worth a run
                self._switch_off(tracker, error, since=f" from step {step} on")

    def message(self, text: str) -> None:
        """Show a line to the user, above the progress display. Silent in a quiet run."""
        if self._display is not None:
            try:
                self._display.message(text)
            except Exception as error:  # noqa: BLE001 - as in log
                self._switch_off(self._display, error)

    def warn(self, text: str) -> None:
        """Show a warning to the user, in a quiet run as well."""
        self._show_warning(text)

    def close(self) -> None:
        """Close all trackers, the display first, so that the terminal is restored whatever the others do."""
        try:
            for tracker in self._optional:
                try:
                    tracker.close()
                except Exception as error:  # noqa: BLE001 - as in log
                    self.warn(f"{_name(tracker)} could not be closed ({_one_line(error)}); it may miss the last steps")
        finally:
            self._optional.clear()
            self._display = None
            self._record.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _switch_off(self, tracker: Tracker, error: Exception, since: str = "") -> None:
        self._optional.remove(tracker)
        if tracker is self._display:
            self._display = None
        with suppress(Exception):  # it has failed and been reported: closing it can only help
            tracker.close()
        self.warn(f"{_name(tracker)} failed and is off{since} ({_one_line(error)}); metrics.jsonl has every step")


def _name(tracker: Tracker) -> str:
    return f"{type(tracker).__name__.removesuffix('Tracker')} tracking"


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
