"""Open the trackers of a recipe. wandb and TensorBoard are imported only if it uses them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import rich.console

from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.terminal.console import WARNING, Console, print_line
from gtpo_cli.terminal.display import ConsoleTracker, entropy_note
from gtpo_cli.text import describe
from gtpo_cli.tracking.jsonl import JsonlTracker
from gtpo_cli.tracking.tracker import Tracker, Trackers


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
            from gtpo_cli.tracking.tensorboard import TensorBoardTracker

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
