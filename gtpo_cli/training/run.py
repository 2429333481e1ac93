"""One training run in its folder. Both gtpo's own loop (loop.py) and TRL's callback drive it.

A `Run` exists while its steps are made, and finishes each of them: it logs the metrics, asks the guard, keeps the best
checkpoint, saves when due, and decides when to stop. These decisions depend only on the logged metrics and the
checkpoint, so a resumed run continues as if it had not stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import rich.console

from gtpo_cli.errors import CheckpointError, GtpoError
from gtpo_cli.policy import Policy
from gtpo_cli.recipe import Recipe
from gtpo_cli.runs.checkpoints import CheckpointState, CheckpointStore
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.terminal.signals import interrupt_flag, reason
from gtpo_cli.text import counted, describe
from gtpo_cli.tracking import Trackers, read_metrics
from gtpo_cli.tracking.tracker import open_trackers
from gtpo_cli.training.best import Best
from gtpo_cli.training.guard import MAX_ROLLBACKS, NO_SIGNAL, ROLLBACK_RATE, Alarm, CollapseGuard
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.step import StepRows
from gtpo_cli.training.step_metrics import audit_metrics, sample_table, step_metrics, write_samples
from gtpo_cli.training.stopwatch import Stopwatch

MAX_BAD_STEPS = 10  # steps in a row without a finite gradient that stop the run


class Trained(Protocol):
    """What a trainer saves and restores."""

    def save(self, state: CheckpointState) -> None:
        """Write a checkpoint with this state."""
        ...

    def roll_back(self, step: int, factor: float) -> float:
        """Return to the weights and moments of a checkpoint, multiply the learning rate, and return the new one."""
        ...


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a run: its `reason` in words, whether to `save` the weights, and whether it is `for_good`, so that a
    resume must not continue."""

    reason: str
    save: bool = True
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `step`: the last one that is saved. `stopped`: the reason of an early end, else None."""

    recipe: Recipe
    folder: RunFolder
    step: int
    total_steps: int
    stopped: str | None


def newest_state(recipe: Recipe, folder: RunFolder, say: Callable[[str], None]) -> CheckpointState:
    """Return the state of the newest intact checkpoint, with which a run continues. Set damaged ones aside.

    Raises CheckpointError if none is intact, GtpoError if the guard stopped the run there.
    """
    store = CheckpointStore(folder.checkpoints, keep_last=recipe.training.keep_last)
    store.remove_leftovers()
    step, problems = store.newest_intact()
    for problem in problems:
        say(problem)
    if step is None:
        return CheckpointState(step=0, metrics_bytes=0)
    for path in store.set_aside(after=step):
        say(f"set aside as {path}; continuing from step {step}")
    state = store.load_state(step)
    store.prune(state)  # a kill may have come before it
    if state.stopped is not None and recipe.training.guard.action != "warn":
        lower = "" if state.stopped.startswith(NO_SIGNAL) else " with a lower optimizer.learning_rate"
        raise GtpoError(
            f"{folder.path}: the guard stopped this run at step {state.step} ({state.stopped}); start a new "
            f"run{lower}, or continue with these weights and --set training.guard.action=warn"
        )
    return state


@contextmanager
def open_run(
    recipe: Recipe,
    folder: RunFolder,
    trained: Trained,
    *,
    state: CheckpointState | None = None,
    total_steps: int,
    initial_entropy: float | None,
    console: rich.console.Console | None = None,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Run]:
    """Open the trackers around the steps of a run, and collect signals. The caller holds the folder.

    Args:
        trained: what a checkpoint holds.
        state: of the checkpoint that a resumed run continues from; None for a new run.
        initial_entropy: <H>_ini, nats; None if nothing is sampled (SFT).
        console, quiet: as in `open_trackers`.
    Raises:
        GtpoError: metrics.jsonl cannot be opened.
    """
    start = state or CheckpointState(step=0, metrics_bytes=0)
    if start.step < total_steps:
        say(f"{'training' if state is None else 'resuming'} {folder.path}")
    trackers = open_trackers(
        recipe, folder.path, total_steps=total_steps, start_step=start.step,
        keep_bytes=None if state is None else start.metrics_bytes, initial_entropy=initial_entropy, console=console,
        quiet=quiet,
    )  # fmt: skip
    with trackers, interrupt_flag(trackers.answer) as signals:
        history = read_metrics(folder.metrics_file) if start.step else []
        yield Run(recipe, folder, trained, start, total_steps, trackers, signals, history)


class Run:
    """A run while its steps are made.

    `state`: of the newest checkpoint, or of step 0. `stopped`: the reason of an early end, else None. `signals`: those
    received so far.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        trained: Trained,
        state: CheckpointState,
        total_steps: int,
        trackers: Trackers,
        signals: Sequence[int],
        history: Iterable[Mapping[str, float]],
    ) -> None:
        """`history`: the metrics of the steps before a resume."""
        training, history = recipe.training, list(history)
        self.recipe, self.folder, self.total_steps, self.trackers = recipe, folder, total_steps, trackers
        self.store = CheckpointStore(folder.checkpoints, keep_last=training.keep_last)
        self.state, self.signals = state, signals
        self.stopped: str | None = None
        self.warn = trackers.warn
        self._trained = trained
        rewarded, resting = recipe.rewards.accuracy.weight > 0, recipe.data.rest_after is not None
        self._guard = CollapseGuard(training.guard, history, rewarded=rewarded, resting=resting)
        self._best = Best(training.keep_best, window=training.save_every, history=history)
        self._rollbacks = state.rollbacks
        self._skipped = 0  # steps in a row without an update
        for row in history:
            self._count_skipped(row)

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.recipe, self.folder, self.state.step, self.total_steps, self.stopped)

    def steps(self) -> Iterator[int]:
        """Yield the numbers of the steps to make, until the last one or a stop."""
        for number in range(self.state.step + 1, self.total_steps + 1):
            yield number
            if self.stopped is not None:
                return

    @contextmanager
    def attempt(self, number: int, updater: Updater) -> Iterator[None]:
        """Make step `number` in the block. If that fails before the weights change, save the steps before it."""
        changes = updater.changes
        try:
            yield
        except Exception as error:
            if updater.changes == changes:  # else the weights are those of no step
                self._rescue(number - 1, error)
            raise

    @contextmanager
    def attempt_after(self, number: int, metrics: dict[str, float]) -> Iterator[None]:
        """Do something with the weights of step `number` in the block. If that fails, finish and save the step."""
        try:
            yield
        except Exception as error:
            self.finish_step(number, metrics)
            self._rescue(number, error)
            raise

    def _rescue(self, number: int, error: Exception) -> None:
        """Save the steps up to `number`, unless they are saved already, and note in the error how to go on."""
        try:
            if number > self.state.step:
                self._save_state(number, due=False)
        except Exception as why:  # noqa: BLE001 - the first error is the one to report
            error.add_note(f"the steps since the last checkpoint could not be saved ({describe(why)})")
        if self.state.step:
            error.add_note(f"step {self.state.step} is saved: gtpo train --resume {self.folder.path}")

    def record(self, number: int, rows: StepRows, clock: Stopwatch, policy: Policy) -> dict[str, float]:
        """Return the metrics of a policy-gradient step.

        If due, or if the step was skipped, its completions go to samples/ and, as a table, to the trackers.
        """
        metrics = step_metrics(rows, clock)  # first, since writing samples does not count as time of the step
        if self.recipe.rollout.steps_per_generation > 1:
            metrics["samples/age"] = float(rows.samples.age)
        every = self.recipe.tracking.log_completions_every
        if rows.not_finite or number == 1 or number % every == 0:
            file = write_samples(self.folder.samples, number, rows, policy.tokenizer)
            self.trackers.log_table(number, "samples", sample_table(rows, policy.tokenizer))
            if rows.not_finite:
                self.warn(f"step {number} was skipped: {rows.not_finite} was not finite; its completions: {file}")
        if self.recipe.objective.audit:
            metrics |= audit_metrics(rows, policy.eos_token_ids)
        return metrics

    def finish_step(self, number: int, metrics: dict[str, float]) -> Stop | None:
        """Log step `number`, then warn, roll back or save as needed. Return a Stop if the run ends here.

        Adds `guard/alarms` to the metrics of a step with rewards.
        """
        alarms = self._guard.observe(metrics)
        if "train/strict_format_rate" in metrics:
            metrics["guard/alarms"] = float(len(alarms))
        self.trackers.log(number, metrics)
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

    def _save_state(self, number: int, *, due: bool, for_good: str | None = None) -> None:
        best = self._best.choose(number, self.state) if due else (self.state.best_step, self.state.best_value)
        state = CheckpointState(number, self.trackers.position, *best, due, self._rollbacks, for_good)
        self._trained.save(state)
        self.state = state

    def is_due(self, number: int, every: int | None) -> bool:
        """Whether a task for `every` so many steps (None: never) and for the last step is due after step `number`."""
        return every is not None and (number % every == 0 or number == self.total_steps)

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
        rate = self._trained.roll_back(step, ROLLBACK_RATE)
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
