"""The choice of the best checkpoint (`training.keep_best`)."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe
from gtpo_cli.tracking import METRICS, Metric, find_metric

if TYPE_CHECKING:  # torch-free, as `gtpo recipes check` is
    from gtpo_cli.runs.checkpoints import CheckpointState


class Best:
    """Tracks the metrics of each step and decides whether a checkpoint is the best so far.

    The rate of one step is noisy, so a checkpoint is judged by the mean over the last `window` steps. Steps from before
    an interruption count too. Of metrics measured on test problems, the latest value counts.
    """

    def __init__(self, name: str | None, *, window: int, history: Iterable[Mapping[str, float]] = ()) -> None:
        """`name`: a metric with a direction, or None for no best; `history`: metrics of the steps before a resume."""
        self._metric = find_metric(name) if name is not None else None
        self._recent: deque[float] = deque(maxlen=window)  # NaN for a step without the metric
        for metrics in history:
            self.note(metrics)

    def note(self, metrics: Mapping[str, float]) -> None:
        if self._metric is not None:
            self._recent.append(metrics.get(self._metric.name, math.nan))

    def choose(self, step: int, before: CheckpointState) -> tuple[int | None, float | None]:
        """Return step and value of the best checkpoint, given one at this step. Among equals the latest wins.

        Call this for scheduled checkpoints only, so that an interruption does not change the choice.
        """
        best_step, best_value = before.best_step, before.best_value
        measured = [value for value in self._recent if math.isfinite(value)]
        if self._metric is None or not measured:
            return best_step, best_value
        value = measured[-1] if self._metric.name.startswith("eval/") else statistics.fmean(measured)
        sign = 1 if self._metric.better == "more" else -1
        if best_value is None or sign * value >= sign * best_value:
            return step, value
        return best_step, best_value


def _has_direction(metric: Metric, method: str) -> bool:
    return metric.better in ("more", "less") or (metric.better == "less in SFT" and method == "sft")


def check_keep_best(recipe: Recipe) -> None:
    """Raise RecipeError for a metric that does not exist, has no direction, or is not measured."""
    if recipe.training.keep_best is not None:
        more_is_better("training.keep_best", recipe.training.keep_best, recipe)


def more_is_better(key: str, name: str, recipe: Recipe) -> bool:
    """Return whether more of a metric is better; else less of it is.

    Raises RecipeError, which begins with `key`, if the metric does not exist, has no direction, or is not measured.
    """
    try:
        metric = find_metric(name)
    except ValueError as error:
        raise RecipeError(f"{key}: {error}") from error
    method = recipe.objective.name
    if not _has_direction(metric, method):
        known = ", ".join(known.name for known in METRICS.values() if _has_direction(known, method))
        raise RecipeError(
            f"{key}: neither more nor less of {name} is better; choose one of {known}, or rewards/... or "
            "eval/... (docs/metrics.md)"
        )
    if any(name == f"rewards/{plugin.name}_mean" and plugin.weight < 0 for plugin in recipe.rewards.plugins):
        raise RecipeError(
            f"{key}: {name} has a negative weight, so less of it is better, but {key} would take the most; choose "
            "train/reward_mean, or flip the reward's sign"
        )
    if reason := not_measured(name, recipe):
        raise RecipeError(f"{key}: {reason}")
    if name.startswith(("train/", "rewards/")) and (
        recipe.data.curriculum is not None or recipe.data.rest_after is not None
    ):
        raise RecipeError(
            f"{key}: {name} is of the problems that are asked, which data.curriculum and data.rest_after change; "
            "choose eval/... (with training.eval_every)"
        )
    return metric.better == "more"


def not_measured(name: str, recipe: Recipe) -> str | None:
    """Say why runs of a recipe have no such metric of a test (eval/...) or of a user's reward; None if they have."""
    if name.startswith("eval/"):
        if recipe.training.eval_every is None:
            return f"{name} is only measured with training.eval_every"
        benchmarks = recipe.evaluation.benchmarks
        tested = [*benchmarks, *(source.name for source in recipe.data.sources if "mixture" in benchmarks)]
        if name != "eval/time" and name.removeprefix("eval/").rpartition("/")[0] not in tested:
            return f"{name} is not measured; evaluation.benchmarks has only {', '.join(tested)}"
    if recipe.objective.name == "sft" and name.startswith(("train/", "rewards/")):
        return f"{name} is not measured: SFT imitates and samples nothing; choose optim/loss or eval/..."
    if name.startswith("rewards/") and name not in METRICS:
        rewards = [plugin.name for plugin in recipe.rewards.plugins] + ["length"] * (recipe.rewards.length.weight > 0)
        if name not in (f"rewards/{reward}_mean" for reward in rewards):
            return f"{name} is not measured; the recipe has the further rewards {', '.join(rewards) or 'none'}"
    return None
