"""Which checkpoint is the best so far (`training.keep_best`)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe
from gtpo_cli.tracking import find_metric

if TYPE_CHECKING:  # torch-free, as `gtpo recipes check` is
    from gtpo_cli.checkpoints import CheckpointState

# Metrics (last part of the name) of which less is better, for training.keep_best; of all others more is.
_LESS_IS_BETTER = {"loss", "kl", "truncated_share", "length_mean"}


class Best:
    """Takes the metrics of each step, and says with each checkpoint which is the best."""

    def __init__(self, name: str | None) -> None:
        self._name = name or ""
        self._since_save: list[float] = []

    def note(self, metrics: Mapping[str, float]) -> None:
        if self._name in metrics:
            self._since_save.append(metrics[self._name])

    def state(self, number: int, metrics_bytes: int, before: CheckpointState) -> CheckpointState:
        """The state to save with the checkpoint of step `number`; `before`: that of the one before."""
        best_step, best_value = before.best_step, before.best_value
        if self._since_save:
            # One step's rate is noise; the mean since the last checkpoint says how good these weights are. What was
            # measured on test problems counts as it was measured last.
            value = self._since_save[-1] if self._name.startswith("eval/") else statistics.fmean(self._since_save)
            sign = -1 if self._name.rpartition("/")[2] in _LESS_IS_BETTER else 1
            if best_value is None or sign * value >= sign * best_value:
                best_step, best_value = number, value
            self._since_save.clear()
        return replace(before, step=number, metrics_bytes=metrics_bytes, best_step=best_step, best_value=best_value)


def check_keep_best(recipe: Recipe) -> None:
    name = recipe.training.keep_best
    if name is None:
        return
    try:
        find_metric(name)
    except ValueError as error:
        raise RecipeError(f"training.keep_best: {error}") from error
    if name.startswith("eval/") and name.split("/")[1] not in (*recipe.evaluation.benchmarks, "time"):
        asked = ", ".join(recipe.evaluation.benchmarks)
        raise RecipeError(f"training.keep_best: {name} is not measured; evaluation.benchmarks holds {asked}")
