"""What a run does when it goes wrong: steps that could not be taken are counted, the guard is asked, and on its word
the run warns, stops, or goes back to its best checkpoint with a lower learning rate (training.guard).

A run that was resumed goes on as if it had not stopped: all that is decided here follows from the logged metrics and
the checkpoint. One that the guard stopped stays stopped (`check_not_stopped`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gtpo_cli.checkpoints import CheckpointState, CheckpointStore
from gtpo_cli.errors import CheckpointError, GtpoError
from gtpo_cli.models import Policy
from gtpo_cli.recipe.schema import GuardRecipe, TrainingRecipe
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.training.guard import CollapseGuard
from gtpo_cli.training.optimizers import Updater


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the run ends here, in words; `save`: whether its weights are worth a checkpoint; `for_good`: whether a resume
    has to stay there too."""

    reason: str
    save: bool
    for_good: bool = False


class Safety:
    """Looks at the metrics of each step."""

    def __init__(
        self,
        recipe: TrainingRecipe,
        *,
        history: Sequence[Mapping[str, float]],
        warn: Callable[[str], None],
        rollback: Rollback | None = None,
        rollbacks: int = 0,
    ) -> None:
        """`history`, `rollbacks`: the metrics of the steps before a resume, and how many rollbacks they had;
        `rollback`: needed for that action of the guard."""
        self._recipe, self._warn, self._rollback = recipe, warn, rollback
        self._guard = CollapseGuard(recipe.guard, history)
        self.rollbacks = rollbacks
        self._skipped = 0  # in a row
        for row in history:
            self._count_skipped(row)

    def look(self, metrics: dict[str, float]) -> list[str]:
        """Ask the guard, and note in the metrics how much it saw."""
        seen = self._guard.observe(metrics)
        if "train/strict_format_rate" in metrics:
            metrics["guard/alarms"] = float(len(seen))
        return seen

    def act(
        self, number: int, metrics: Mapping[str, float], seen: Sequence[str], state: CheckpointState
    ) -> Stop | None:
        """What step `number` calls for, after it was logged; `state` is that of the newest checkpoint."""
        self._count_skipped(metrics)
        if self._skipped >= self._recipe.max_bad_steps:
            return Stop(
                f"{self._skipped} steps in a row made no update, since a log-probability, the loss or the gradient was "
                "not finite; try a lower optimizer.learning_rate in a new run",
                save=False,
            )
        if not seen:
            return None
        self._warn(f"step {number}: policy collapse: {'; '.join(seen)}")
        guard = self._recipe.guard
        if guard.action == "warn":
            return None
        if guard.action == "stop":
            return Stop(f"policy collapse: {seen[0]}", save=True, for_good=True)
        if self.rollbacks >= guard.max_rollbacks:
            times = f"{self.rollbacks} rollback{'s' * (self.rollbacks != 1)}"
            return Stop(f"policy collapse after {times}: {seen[0]}", save=True, for_good=True)
        assert self._rollback is not None
        step = self._rollback.to_good_weights(before=number - guard.window, best=state.best_step)
        if step is None:
            return Stop(
                f"policy collapse, and there is no earlier checkpoint to go back to: {seen[0]}",
                save=True,
                for_good=True,
            )
        self.rollbacks += 1
        self._warn(
            f"step {number}: went back to the weights of step {step}; the learning rate is "
            f"{self._rollback.learning_rate:.3g} now (rollback {self.rollbacks} of {guard.max_rollbacks})"
        )
        return None

    def _count_skipped(self, metrics: Mapping[str, float]) -> None:
        self._skipped = self._skipped + 1 if metrics.get("optim/skipped", 0.0) else 0


def check_not_stopped(state: CheckpointState, guard: GuardRecipe, run: RunFolder) -> None:
    """Raises GtpoError where the guard stopped the run at this checkpoint: a resume would train on what collapsed."""
    if state.stopped is not None and guard.action != "warn":
        raise GtpoError(
            f"{run.path}: the guard stopped this run at step {state.step} ({state.stopped}); start a new run with a "
            "lower optimizer.learning_rate, or go on from the collapsed weights with training.guard.action: warn in "
            f"{run.recipe_file}"
        )


class Rollback:
    """Back to earlier weights, with a lower learning rate from there."""

    def __init__(
        self,
        recipe: GuardRecipe,
        store: CheckpointStore,
        policy: Policy,
        updater: Updater,
        *,
        warn: Callable[[str], None],
    ) -> None:
        self._recipe, self._store, self._policy, self._updater, self._warn = recipe, store, policy, updater, warn

    @property
    def learning_rate(self) -> float:
        return self._updater.learning_rate

    def to_good_weights(self, *, before: int, best: int | None) -> int | None:
        """Take the weights and moments of the best checkpoint, else of the newest from before the collapse, that is
        whole; its step, None without any."""
        step = self._good_checkpoint(before=before, best=best)
        if step is not None:
            self._policy.load(self._store.path(step) / "model")
            with self._store.using_training(step):
                self._updater.load_moments(self._store.load_training(step)["updater"])
            self._updater.lower_rate(self._recipe.rollback_rate)
        return step

    def _good_checkpoint(self, *, before: int, best: int | None) -> int | None:
        older = [step for step in reversed(self._store.scheduled_steps()) if step <= before]
        for step in [best, *older] if best is not None else older:
            try:
                self._store.check(step)
            except CheckpointError as error:
                self._warn(str(error))
                continue
            return step
        return None
