"""What a tracker is, which ones a recipe opens, and how the loop talks to all of them at once.

metrics.jsonl is the record of the run: when it cannot be written, the run stops with a GtpoError. Every other tracker
is a convenience: when one fails, it is switched off with one warning, and the run goes on.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from gtpo_cli.errors import install
from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.text import describe
from gtpo_cli.tracking.jsonl import JsonlTracker
from gtpo_cli.tracking.metrics import find_metric

if TYPE_CHECKING:
    from rich.console import Console

    from gtpo_cli.tracking.console import ConsoleTracker


T = TypeVar("T", bound="Tracker")


class Tracker(Protocol):
    """Takes the metrics of finished steps somewhere. `metrics` holds any subset of the declared ones, unordered."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


Row = Mapping[str, str | float | None]  # of a table: by column; all rows have the same


@runtime_checkable
class TableTracker(Tracker, Protocol):
    """A tracker that takes tables too: completions and evaluations, a row each."""

    def log_table(self, step: int, name: str, rows: Sequence[Row]) -> None: ...


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
        self._tell(self._optional, step, lambda tracker: tracker.log(step, metrics))

    def log_table(self, step: int, name: str, rows: Sequence[Row]) -> None:
        """Hand a table of step `step`, whose metrics come later, to every tracker that takes tables."""
        takers = [tracker for tracker in self._optional if isinstance(tracker, TableTracker)]
        self._tell(takers if rows else [], step, lambda tracker: tracker.log_table(step, name, rows))

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

    def _tell(self, trackers: Sequence[T], step: int, tell: Callable[[T], None]) -> None:
        for tracker in tuple(trackers):
            try:
                tell(tracker)
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
    return f"{type(tracker).__name__.removesuffix('Tracker')} tracking"


def open_trackers(
    recipe: Recipe,
    run_dir: Path,
    *,
    total_steps: int,
    start_step: int = 0,
    keep_bytes: int | None = None,
    initial_entropy: float | None = None,
    console: Console | None = None,
    quiet: bool = False,
) -> Trackers:
    """Open what `recipe.tracking` asks for; use the result as a context manager.

    A resumed run gives the last step of its checkpoint (`start_step`) and `Trackers.position` as it was then
    (`keep_bytes`); what was recorded after that is dropped. A new run has neither. `initial_entropy`: <H>_ini in nats,
    shown beside the entropy; None for SFT. `quiet`: no display and no messages; warnings are still printed. Raises
    GtpoError when metrics.jsonl cannot be opened, RecipeError when TensorBoard is not installed. A wandb that fails is
    a warning.
    """
    from gtpo_cli.tracking.console import Console, ConsoleTracker, entropy_note

    console = console or Console()
    warn = _warn_on(console)
    record = JsonlTracker(run_dir / "metrics.jsonl", keep_bytes=keep_bytes)
    others: list[Tracker] = []
    try:
        if recipe.tracking.tensorboard:
            from gtpo_cli.tracking.tensorboard import TensorBoardTracker

            others.append(TensorBoardTracker(run_dir / "tensorboard", start_step=start_step))
        if recipe.tracking.wandb.mode != "off":
            others += _open_wandb(recipe, run_dir, warn, resumed=keep_bytes is not None)
        note = entropy_note(initial_entropy, recipe.objective.filter)
        display = None if quiet else ConsoleTracker(total_steps, start_step=start_step, note=note, console=console)
    except BaseException:
        Trackers(record, others=others, warn=warn).close()
        raise
    return Trackers(record, display=display, others=others, warn=warn)


def _open_wandb(recipe: Recipe, run_dir: Path, warn: Callable[[str], None], *, resumed: bool) -> list[Tracker]:
    """wandb in a thread of its own; nothing where it cannot be opened."""
    if importlib.util.find_spec("wandb") is None:
        if recipe.tracking.wandb.mode != "auto":
            warn(f"wandb is off: it is not installed: {install('wandb')}; metrics.jsonl has every step")
        return []
    try:
        from gtpo_cli.tracking.wandb import FINISH_TIMEOUT, BackgroundTracker, WandbTracker

        tracker = WandbTracker(recipe, run_dir, resumed=resumed, warn=warn)
    except Exception as error:  # noqa: BLE001 - foreign code, a network and an account: nothing in it is worth a run
        remedy = "metrics.jsonl has every step. Silence this with tracking.wandb.mode: off"
        warn(f"wandb is off ({describe(error)}); {remedy}")
        return []
    return [BackgroundTracker(tracker, close_seconds=FINISH_TIMEOUT + 10)]  # wandb's own patience comes first


def _warn_on(console: Console) -> Callable[[str], None]:
    """Warnings as one line on the console, above the display; through the `warnings` module once it is gone."""
    from gtpo_cli.tracking.console import WARNING, print_line

    def warn(text: str) -> None:
        with suppress(OSError):
            if not console.quiet:  # as rich leaves it after a broken pipe
                print_line(console, f"warning: {text}", style=WARNING)
                return
        warnings.warn(text, stacklevel=2)

    return warn
