"""Where the metrics of a run go: metrics.jsonl always, the console, and wandb and TensorBoard where the recipe asks.

`metrics.py` declares every metric once. Nothing heavy is imported before `open_trackers` needs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.tracking.jsonl import JsonlTracker, read_metrics
from gtpo_cli.tracking.metrics import METRICS, Metric, check_metrics, find_metric, metrics_table
from gtpo_cli.tracking.tracker import Tracker, Trackers

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "METRICS",
    "METRICS_FILE",
    "JsonlTracker",
    "Metric",
    "Tracker",
    "Trackers",
    "check_metrics",
    "find_metric",
    "metrics_table",
    "open_trackers",
    "read_metrics",
]

METRICS_FILE = "metrics.jsonl"
_WANDB_ID_FILE = Path("wandb") / "run_id"


def open_trackers(
    recipe: Recipe,
    run_dir: Path,
    *,
    run_name: str,
    total_steps: int,
    start_step: int = 0,
    keep_bytes: int | None = None,
    initial_entropy: float | None = None,
    filter_on: bool | None = None,
    console: Console | None = None,
    quiet: bool = False,
) -> Trackers:
    """Open what `recipe.tracking` asks for; use the result as a context manager.

    A resumed run gives the last step of its checkpoint (`start_step`) and `Trackers.position` as it was then
    (`keep_bytes`); what was recorded after that is dropped. A new run has neither. `initial_entropy` (`<H>_ini`, nats)
    and `filter_on` are shown beside the entropy; both are None for SFT. `quiet`: no display and no messages; warnings
    are still printed. Raises GtpoError when metrics.jsonl cannot be opened, RecipeError when TensorBoard is not
    installed. A wandb that fails is a warning.
    """
    from gtpo_cli.tracking.console import Console, ConsoleTracker

    console = console or Console()
    warn = _warn_on(console)
    record = JsonlTracker(run_dir / METRICS_FILE, keep_bytes=keep_bytes)
    others: list[Tracker] = []
    try:
        if recipe.tracking.tensorboard:
            from gtpo_cli.tracking.tensorboard import TensorBoardTracker

            others.append(TensorBoardTracker(run_dir / "tensorboard", start_step=start_step))
        if recipe.tracking.wandb.mode != "off" and (online := _open_wandb(recipe, run_dir, run_name, start_step, warn)):
            others.append(online)
        display = None
        if not quiet:
            display = ConsoleTracker(
                total_steps,
                start_step=start_step,
                initial_entropy=initial_entropy,
                filter_on=filter_on,
                filter_threshold=recipe.objective.filter.threshold,
                console=console,
            )
    except BaseException:
        Trackers(record, others=others, warn=warn).close()
        raise
    return Trackers(record, display=display, others=others, warn=warn)


def _open_wandb(
    recipe: Recipe, run_dir: Path, run_name: str, start_step: int, warn: Callable[[str], None]
) -> Tracker | None:
    """A resumed run goes on under the wandb id that its first part left in the run folder."""
    settings = recipe.tracking.wandb
    id_file = run_dir / _WANDB_ID_FILE
    try:
        from gtpo_cli.tracking.background import BackgroundTracker
        from gtpo_cli.tracking.wandb import FINISH_TIMEOUT, WandbTracker

        assert settings.mode != "off"
        tracker = WandbTracker(
            recipe.model_dump(mode="json"),
            run_name,
            run_dir,
            mode=settings.mode,
            project=settings.project,
            entity=settings.entity,
            tags=settings.tags,
            resume_id=id_file.read_bytes().decode().strip() if start_step and id_file.is_file() else None,
            warn=warn,
        )
        id_file.write_text(tracker.run_id + "\n")
    except Exception as error:  # noqa: BLE001 - foreign code, a network and an account: nothing in it is worth a run
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warn(f"wandb is off ({reason}); metrics.jsonl has every step. Silence this with tracking.wandb.mode: off")
        return None
    return BackgroundTracker(tracker, close_seconds=FINISH_TIMEOUT + 10)  # wandb's own patience comes first


def _warn_on(console: Console) -> Callable[[str], None]:
    """Warnings as one line on the console, above the display; through the `warnings` module once it is gone."""
    from gtpo_cli.tracking.console import print_line

    def warn(text: str) -> None:
        try:
            if not console.quiet:  # as rich leaves it after a broken pipe
                print_line(console, f"warning: {text}", style="yellow")
                return
        except OSError:
            pass
        warnings.warn(text, stacklevel=2)

    return warn
