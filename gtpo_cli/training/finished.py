"""Whether a run has anything left to do, known before its model is loaded."""

from __future__ import annotations

from gtpo_cli.checkpoints import CheckpointStore
from gtpo_cli.recipe import Recipe
from gtpo_cli.run_folder import RunFolder


def finished_at(run: RunFolder, recipe: Recipe) -> int | None:
    """Its last step, where it has made all of them and the checkpoint of the last is whole. None where there is
    something to do (leftovers of a killed process to remove, too), where the guard ended it there, and where its steps
    are not known.

    Raises CheckpointError where no checkpoint is whole.
    """
    total, store = recipe.training.max_steps or run.total_steps(), CheckpointStore(run.checkpoints, keep_last=1)
    if total is None or max(store.steps(), default=0) < total or store.leftovers():
        return None
    step, _ = store.newest_intact()
    return None if step is None or step < total or store.load_state(step).stopped else step
