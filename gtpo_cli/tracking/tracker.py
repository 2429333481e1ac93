"""The interface of a tracker, the choice of trackers, and an object that drives all of them at once.

metrics.jsonl is the record of the run. If it cannot be written, the run stops with a GtpoError. If any other tracker
fails, it is switched off with one warning, and the run continues.

wandb and TensorBoard are imported only if the recipe uses them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import rich.console

from gtpo_cli.errors import RecipeError, install
from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.terminal.console import WARNING, Console, print_line
from gtpo_cli.terminal.display import ConsoleTracker, entropy_note
from gtpo_cli.terminal.signals import say_at_once
from gtpo_cli.text import describe, markdown_table, markdown_text
from gtpo_cli.tracking.jsonl import JsonlTracker
from gtpo_cli.tracking.metrics import find_metric

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


def open_trackers(
    recipe: Recipe,
    run_dir: Path,
    *,
    total_steps: int,
    start_step: int = 0,
    keep_bytes: int | None = None,
    initial_entropy: float | None = None,
    console: rich.console.Console | None = None,
    quiet: bool = False,
) -> Trackers:
    """Open the trackers of `recipe.tracking`; use the result as a context manager.

    A resumed run passes the last step of its checkpoint (`start_step`) and its `Trackers.position` (`keep_bytes`).
    Later records are dropped. A new run has neither. `initial_entropy`: <H>_ini in nats, shown beside the entropy; None
    for SFT. `quiet`: no display and no messages; warnings are still printed. Raises GtpoError if metrics.jsonl cannot
    be opened, RecipeError if TensorBoard is not installed. If wandb fails, that is only a warning.
    """
    console = console or Console()
    warn = warn_on(console)
    record = JsonlTracker(run_dir / "metrics.jsonl", keep_bytes=keep_bytes)
    others: list[Tracker] = []
    try:
        if recipe.tracking.tensorboard:
            others.append(TensorBoardTracker(run_dir / "tensorboard", start_step=start_step))
        if recipe.tracking.wandb.mode != "off":
            say = None if quiet else partial(print_line, console, whole=True)
            others += _open_wandb(recipe, run_dir, warn, say, resumed=keep_bytes is not None)
        note = entropy_note(initial_entropy, recipe.objective.filter)
        display = None
        if not quiet:
            display = ConsoleTracker(
                total_steps, name=run_dir.absolute().name, start_step=start_step, note=note, console=console
            )
    except BaseException:
        Trackers(record, others=others, warn=warn).close()
        raise
    return Trackers(record, display=display, others=others, warn=warn)


def _open_wandb(
    recipe: Recipe, run_dir: Path, warn: Callable[[str], None], say: Callable[[str], None] | None, *, resumed: bool
) -> list[Tracker]:
    """Open wandb in its own thread, or return no tracker if that fails. `say` gets the place of an offline record."""
    try:
        from gtpo_cli.tracking.wandb import FINISH_TIMEOUT, BackgroundTracker, WandbTracker, sync_command

        tracker = WandbTracker(recipe, run_dir, resumed=resumed, warn=warn)
        if say is not None and tracker.is_offline:
            with suppress(OSError):  # standard output was closed
                say(f"wandb: offline, in {run_dir / 'wandb'}; to upload it afterwards:\n  {sync_command(run_dir)}")
    except Exception as error:  # noqa: BLE001 - no error of foreign code, a network or an account may end a run
        remedy = "metrics.jsonl has every step. Silence this with tracking.wandb.mode: off"
        warn(f"wandb is off ({describe(error)}); {remedy}")
        return []
    return [BackgroundTracker(tracker, close_seconds=FINISH_TIMEOUT + 10)]  # wandb's own timeout comes first


def warn_on(console: rich.console.Console) -> Callable[[str], None]:
    """Return a function that shows a warning as one line above the display, or with `warnings` once it is closed."""

    def warn(text: str) -> None:
        with suppress(OSError):
            if not console.quiet:  # rich sets it after a broken pipe
                print_line(console, f"warning: {text}", style=WARNING)
                return
        warnings.warn(text, stacklevel=2)

    return warn


class TensorBoardTracker:
    """Writes a scalar for each metric, under the declared names, and tables as text.

    `start_step`: the last step that a resumed run keeps. Raises RecipeError if the package tensorboard is missing.
    """

    def __init__(self, folder: Path, *, start_step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RecipeError(
                f"tracking.tensorboard: true needs the package tensorboard ({error}); "
                f"{install('tensorboard')}, or set tracking.tensorboard: false"
            ) from error
        # purge_step lets steps that are made again after a resume replace the old ones.
        self._writer = SummaryWriter(str(folder), purge_step=start_step + 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def log_table(self, step: int, name: str, rows: Sequence[TableRow]) -> None:
        """Write a table as text, which TensorBoard draws as Markdown."""
        cells = ([_cell(value) for value in row.values()] for row in rows)
        self._writer.add_text(name, markdown_table(list(rows[0]), cells), step)

    def close(self) -> None:
        self._writer.close()


def _cell(value: str | float | None) -> str:
    return "" if value is None else markdown_text(value) if isinstance(value, str) else f"{value:g}"
