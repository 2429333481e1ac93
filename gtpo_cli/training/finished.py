"""A check whether a run has anything left to do, before its model is loaded."""

from __future__ import annotations

from gtpo_cli.recipe import Recipe
from gtpo_cli.runs.checkpoints import CheckpointStore
from gtpo_cli.runs.folder import RunFolder


def finished_at(run: RunFolder, recipe: Recipe) -> int | None:
    """Return the run's last step if all steps are made and the last checkpoint is intact, else None.

    It is also None if a killed process left files to remove, if the guard stopped the run at its last step, or if the
    number of steps is unknown. Raises CheckpointError if no checkpoint is intact.
    """
    total = recipe.training.max_steps or run.total_steps()
    store = CheckpointStore(run.checkpoints, keep_last=recipe.training.keep_last)
    if total is None or max(store.steps(), default=0) < total or store.leftovers():
        return None
    step, _ = store.newest_intact()
    if step is None or step < total:
        return None
    state = store.load_state(step)
    return None if state.stopped or store.surplus(state) else step
