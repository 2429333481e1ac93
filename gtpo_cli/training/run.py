"""One training run in its folder. Both gtpo's own loop (loop.py) and TRL's callback drive it.

A `Run` knows the step to continue from and finishes each step: it logs the metrics, asks the guard, keeps the best
checkpoint, saves when due, and decides when to stop. These decisions depend only on the logged metrics and the
checkpoint, so a resumed run continues as if it had not stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gtpo_cli.checkpoints import CheckpointState, CheckpointStore
from gtpo_cli.errors import CheckpointError, GtpoError
from gtpo_cli.models import Policy
from gtpo_cli.recipe import Recipe
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.text import counted
from gtpo_cli.tracking import Trackers, read_metrics
from gtpo_cli.tracking.opening import open_trackers
from gtpo_cli.training.best import Best, check_keep_best
from gtpo_cli.training.guard import MAX_ROLLBACKS, NO_SIGNAL, ROLLBACK_RATE, Alarm, CollapseGuard
from gtpo_cli.training.interrupts import reason
from gtpo_cli.training.samples import sample_table, write_samples
from gtpo_cli.training.step import StepResult
from gtpo_cli.training.step_metrics import audit_metrics, step_metrics
from gtpo_cli.training.stopwatch import Stopwatch

MAX_BAD_STEPS = 10  # steps in a row without a finite gradient that stop the run


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a run: its `reason` in words, whether to `save` the weights, and whether it is `for_good`, so that a
    resume must not continue."""

    reason: str
    save: bool = True
    for_good: bool = False


class Run:
    """A run between its start and its last step.

    `state`: of the newest checkpoint, or step 0; `total_steps`: known once the run begins; `stopped`: the reason of an
    early end, else None; `signals`: signals received so far, set by the trainer.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        *,
        resume: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Begin at step 0, or with `resume` at the newest intact checkpoint. Damaged ones are reported and set aside.

        Raises CheckpointError if no checkpoint is intact, GtpoError if the guard stopped the run there, and RecipeError
        for an unknown metric in `training.keep_best`. The caller holds the folder (`RunFolder.held`).
        """
        self.recipe, self.folder, self._resume, self._say = recipe, folder, resume, say
        self.store = CheckpointStore(folder.checkpoints, keep_last=recipe.training.keep_last)
        self.state = self._newest_state() if resume else CheckpointState(step=0, metrics_bytes=0)
        if self.state.stopped is not None and recipe.training.guard.action != "warn":
            lower = "" if self.state.stopped.startswith(NO_SIGNAL) else " with a lower optimizer.learning_rate"
            raise GtpoError(
                f"{folder.path}: the guard stopped this run at step {self.state.step} ({self.state.stopped}); start a "
                f"new run{lower}, or continue with these weights and --set training.guard.action=warn"
            )
        check_keep_best(recipe)
        self.signals: Sequence[int] = ()
        self.total_steps = 0
        self._trackers: Trackers | None = None
        self.stopped: str | None = None
        self._rollbacks = self.state.rollbacks
        self._skipped = 0  # steps in a row without an update

    @contextmanager
    def begin(
        self,
        *,
        save: Callable[[CheckpointState], None],
        roll_back: Callable[[int, float], float] | None = None,
        total_steps: int,
        initial_entropy: float | None,
        quiet: bool = False,
    ) -> Iterator[Trackers]:
        """Open the trackers around the steps and read what was logged before a resume.

        Args:
            save: writes a checkpoint with this state.
            roll_back: restores the weights and moments of the checkpoint of a step, multiplies the learning rate by a
                factor and returns the new rate. Needed if `training.guard.action` is rollback.
            initial_entropy: <H>_ini, nats; None if nothing is sampled (SFT).
            quiet: no display.
        Raises:
            GtpoError: metrics.jsonl cannot be opened.
        """
        training, start = self.recipe.training, self.state.step
        self._save, self._roll_back, self.total_steps = save, roll_back, total_steps
        if start < total_steps:
            self._say(f"{'resuming' if self._resume else 'training'} {self.folder.path}")
        trackers = open_trackers(
            self.recipe,
            self.folder.path,
            total_steps=total_steps,
            start_step=start,
            keep_bytes=self.state.metrics_bytes if self._resume else None,
            initial_entropy=initial_entropy,
            quiet=quiet,
        )
        with trackers as self._trackers:
            history = read_metrics(self.folder.metrics_file) if start else []
            self._guard = CollapseGuard(training.guard, history)
            self._best = Best(training.keep_best, window=training.save_every, history=history)
            for row in history:
                self._count_skipped(row)
            try:
                yield trackers
            finally:
                del self._save, self._roll_back  # they hold the model

    def warn(self, text: str) -> None:
        """Show the user a line, above the display if it is running."""
        (self._say if self._trackers is None else self._trackers.warn)(text)

    def record(self, number: int, result: StepResult, clock: Stopwatch, policy: Policy) -> dict[str, float]:
        """Return the metrics of a policy-gradient step.

        If due, or if the step was skipped, its completions go to samples/ and, as a table, to the trackers.
        """
        metrics = step_metrics(result, clock)  # first, since writing samples does not count as time of the step
        if self.recipe.rollout.steps_per_generation > 1:
            metrics["samples/age"] = float(result.age)
        every = self.recipe.tracking.log_completions_every
        if result.not_finite or number == 1 or number % every == 0:
            file = write_samples(self.folder.samples, number, result, policy.tokenizer)
            if self._trackers is not None:
                self._trackers.log_table(number, "samples", sample_table(result, self.recipe, policy.tokenizer))
            if result.not_finite:
                self.warn(f"step {number} was skipped: {result.not_finite} was not finite; its completions: {file}")
        if self.recipe.objective.audit:
            metrics |= audit_metrics(result, policy.eos_token_ids)
        return metrics

    def finish_step(self, number: int, metrics: dict[str, float]) -> Stop | None:
        """Log step `number`, then warn, roll back or save as needed. Return a Stop if the run ends here.

        Adds `guard/alarms` to the metrics of a step with rewards.
        """
        assert self._trackers is not None, "begin comes first"
        alarms = self._guard.observe(metrics)
        if "train/strict_format_rate" in metrics:
            metrics["guard/alarms"] = float(len(alarms))
        self._trackers.log(number, metrics)
        self._best.note(metrics)
        self._count_skipped(metrics)
        stop = self._respond(number, alarms)
        if stop is None and self.signals:
            stop = Stop(reason(self.signals))
        due = self.is_due(number, self.recipe.training.save_every)
        if due if stop is None else stop.save:
            self._save_state(number, due=due, for_good=stop.reason if stop is not None and stop.for_good else None)
        self.stopped = None if stop is None else stop.reason
        return stop

    def save_before(self, number: int) -> None:
        """Save the steps before `number`, which failed, unless they are saved already."""
        if number - 1 > self.step:
            self._save_state(number - 1, due=False)

    def _save_state(self, number: int, *, due: bool, for_good: str | None = None) -> None:
        assert self._trackers is not None
        best = self._best.choose(number, self.state) if due else (self.state.best_step, self.state.best_value)
        state = CheckpointState(number, self._trackers.position, *best, due, self._rollbacks, for_good)
        self._save(state)
        self.state = state

    def is_due(self, number: int, every: int | None) -> bool:
        """Whether a task for `every` so many steps (None: never) and for the last step is due after step `number`."""
        return every is not None and (number % every == 0 or number == self.total_steps)

    @property
    def step(self) -> int:
        """Steps finished and saved."""
        return self.state.step

    def _count_skipped(self, metrics: Mapping[str, float]) -> None:
        self._skipped = self._skipped + 1 if metrics.get("optim/skipped", 0.0) else 0

    def _respond(self, number: int, alarms: Sequence[Alarm]) -> Stop | None:
        """Respond to too many skipped steps or to alarms of the guard (`training.guard.action`)."""
        if self._skipped >= MAX_BAD_STEPS:
            return Stop(
                f"{counted(self._skipped, 'step')} in a row made no update, because a log-probability, the loss or the "
                "gradient was not finite; try a lower optimizer.learning_rate in a new run",
                save=False,
            )
        if not alarms:
            return None
        guard, kind = self.recipe.training.guard, alarms[0].kind
        self.warn(f"step {number}: {kind}: {'; '.join(alarm.text for alarm in alarms)}")
        if guard.action == "warn" or not alarms[0].acts:
            return None
        if guard.action == "stop" or kind == NO_SIGNAL:
            return Stop(f"{kind}: {alarms[0].text}", for_good=True)
        return self._roll_back_from(number, alarms[0].text)

    def _roll_back_from(self, number: int, alarm: str) -> Stop | None:
        """Return to the weights of an earlier checkpoint with a lower learning rate. Stop if that is impossible."""
        guard = self.recipe.training.guard
        if self._rollbacks >= MAX_ROLLBACKS:
            times = f"{self._rollbacks} rollback{'s' * (self._rollbacks != 1)}"
            return Stop(f"policy collapse after {times}: {alarm}", for_good=True)
        step = self._good_checkpoint(before=number - guard.window)
        if step is None:
            return Stop(f"policy collapse, and there is no earlier checkpoint to go back to: {alarm}", for_good=True)
        assert self._roll_back is not None
        rate = self._roll_back(step, ROLLBACK_RATE)
        self._rollbacks += 1
        self.warn(
            f"step {number}: went back to the weights of step {step}; the learning rate is {rate:.3g} now (rollback "
            f"{self._rollbacks} of {MAX_ROLLBACKS})"
        )
        return None

    def _good_checkpoint(self, *, before: int) -> int | None:
        """Return the best intact checkpoint, else the newest intact one from before the collapse, else None."""
        older = [step for step in reversed(self.store.scheduled_steps()) if step <= before]
        for step in [self.state.best_step, *older] if self.state.best_step is not None else older:
            try:
                self.store.check(step)
            except CheckpointError as error:
                self.warn(str(error))
                continue
            return step
        return None

    def _newest_state(self) -> CheckpointState:
        self.store.remove_leftovers()
        step, problems = self.store.newest_intact()
        for problem in problems:
            self._say(problem)
        if step is None:
            return CheckpointState(step=0, metrics_bytes=0)
        for path in self.store.set_aside(after=step):
            self._say(f"set aside as {path}; continuing from step {step}")
        state = self.store.load_state(step)
        self.store.prune(state)  # a kill may have come before it
        return state
