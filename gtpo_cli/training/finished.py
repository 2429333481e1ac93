"""A check whether a run has anything left to do, before its model is loaded."""

from __future__ import annotations

from gtpo_cli.checkpoints import CheckpointStore
from gtpo_cli.recipe import Recipe
from gtpo_cli.run_folder import RunFolder


def finished_at(run: RunFolder, recipe: Recipe) -> int | None:
    """Return the run's last step if all steps are made and the last checkpoint is intact, else None.

    It is also None if a killed process left files to remove, if the guard stopped the run at its last step, or if the
    number of steps is unknown. Raises CheckpointError if no checkpoint is intact.
    """
    total, store = recipe.training.max_steps or run.total_steps(), CheckpointStore(run.checkpoints, keep_last=1)
    if total is None or max(store.steps(), default=0) < total or store.leftovers():
        return None
    step, _ = store.newest_intact()
    return None if step is None or step < total or store.load_state(step).stopped else step
