"""The training loop: steps in order, metrics, checkpoints, interruption. What a step does is in `step.py`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from gtpo_cli.checkpoints import CheckpointState, CheckpointStore, restore_random_states, seed_random_states
from gtpo_cli.errors import NotFiniteError
from gtpo_cli.generation import load_sampler
from gtpo_cli.recipe import Recipe
from gtpo_cli.rollout import open_scorer
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.seeds import derive_seed
from gtpo_cli.tracking import Trackers, open_trackers, read_metrics
from gtpo_cli.training.audit import audit_metrics
from gtpo_cli.training.best import Best, check_keep_best
from gtpo_cli.training.held_out import HeldOut
from gtpo_cli.training.initial_entropy import filter_state, find_initial_entropy
from gtpo_cli.training.interrupts import interrupt_flag, reason
from gtpo_cli.training.microbatch import MicroBatchSize
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.order import PromptOrder
from gtpo_cli.training.safety import Rollback, Safety, Stop, check_not_stopped
from gtpo_cli.training.samples import write_samples
from gtpo_cli.training.setup import Say, Setup, longest_row, prepare
from gtpo_cli.training.sft import SftParts, sft_step
from gtpo_cli.training.step import StepParts, train_step
from gtpo_cli.training.step_metrics import step_metrics
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.training.stress import stress_step, wants_stress


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a run ended. `stopped`: why before the last step, None when it is complete."""

    run: RunFolder
    step: int
    total_steps: int
    stopped: str | None


def train(
    recipe: Recipe, run: RunFolder, *, resume: bool = False, quiet: bool = False, say: Say = lambda text: None
) -> TrainResult:
    """Train as the recipe says, in the run folder, which exists; with `resume`, from its newest checkpoint.

    `say` gets a line for each thing a user should know before the first step; afterwards the display speaks, unless
    `quiet`. Ctrl-C and SIGTERM finish the step, save and return. Raises GtpoError; whatever was saved before stays
    good. The caller holds the run's lock.
    """
    store = CheckpointStore(run.checkpoints, keep_last=recipe.training.keep_last)
    state = newest_state(store, say) if resume else CheckpointState(step=0, metrics_bytes=0)
    check_not_stopped(state, recipe.training.guard, run)
    check_keep_best(recipe)
    with ExitStack() as stack:
        # First: a reward that cannot be loaded is known before the model is.
        scorer = stack.enter_context(open_scorer(recipe.rewards))
        setup = prepare(recipe, say=say, samples=recipe.samples)
        run.write_environment(setup.facts)
        sampler = load_sampler(setup.policy, recipe, warn=say) if recipe.samples else None
        seed_random_states(derive_seed(recipe.seed, "torch"))  # after the engine's start, which seeds with 0
        longest = longest_row(setup.prompts, recipe, setup.policy)
        micro = MicroBatchSize(
            recipe.training.micro_batch_size, longest_row=longest, packed=setup.policy.packs, warn=say
        )
        if wants_stress(recipe, setup.policy):
            tokens = stress_step(recipe, setup.policy, sampler, setup.prompts, micro)
            say(f"the longest row ({tokens} tokens) fits, {micro} at a time in training")
        held_out = None
        if recipe.training.eval_every is not None:
            assert sampler is not None
            held_out = stack.enter_context(HeldOut(recipe, setup.policy, sampler))
        initial_entropy = None
        if recipe.objective.name != "sft":
            assert sampler is not None
            initial_entropy = find_initial_entropy(recipe, run, setup, sampler, say)
        order = PromptOrder(recipe, setup.prompts)
        updater = Updater(
            setup.policy.trainable_parameters(),
            recipe.optimizer,
            total_steps=order.total_steps,
            dtype=setup.policy.dtype,
        )
        if state.step:
            setup.policy.load(store.path(state.step) / "model")
            loaded = store.load_training(state.step)
            with store.using_training(state.step):
                updater.load_state_dict(loaded["updater"])
                other_gpus = restore_random_states(loaded["random"])
            if other_gpus:
                say(other_gpus)
        trackers = stack.enter_context(
            open_trackers(
                recipe,
                run.path,
                run_name=run.name,
                total_steps=order.total_steps,
                start_step=state.step,
                keep_bytes=state.metrics_bytes if resume else None,
                initial_entropy=initial_entropy,
                filter_on=filter_state(recipe, initial_entropy),
                quiet=quiet,
            )
        )
        micro.tell(trackers.warn)
        stepper: _Stepper
        if initial_entropy is None or sampler is None:
            stepper = _SftStepper(SftParts(setup.policy, updater, micro, recipe.rewards.format.tags), order)
        else:
            parts = StepParts(recipe, setup.policy, sampler, scorer, updater, initial_entropy, micro)
            stepper = _GroupStepper(parts, order, run, trackers.warn)
        history = read_metrics(run.metrics_file) if state.step else []
        rollback = Rollback(recipe.training.guard, store, setup.policy, updater, warn=trackers.warn)
        safety = Safety(
            recipe.training, history=history, warn=trackers.warn, rollback=rollback, rollbacks=state.rollbacks
        )
        best = Best(recipe.training.keep_best, window=recipe.training.save_every, history=history)
        return _Loop(
            recipe, run, store, setup, updater, trackers, stepper, safety, held_out, order.total_steps, best
        ).run(state)  # fmt: skip


class _Stepper(Protocol):
    """One kind of step: `run` does step `number` and returns its metrics."""

    def run(self, number: int) -> dict[str, float]: ...


class _GroupStepper:
    """GTPO and GRPO."""

    def __init__(self, parts: StepParts, order: PromptOrder, run: RunFolder, warn: Say) -> None:
        self._parts, self._order, self._run, self._warn = parts, order, run, warn

    def run(self, number: int) -> dict[str, float]:
        clock = Stopwatch()
        seed = derive_seed(self._parts.recipe.seed, "sample", number)
        try:
            result = train_step(self._parts, self._order.step(number), seed=seed, clock=clock)
        except NotFiniteError as error:
            self._warn(f"step {number} was skipped: {error}")
            self._parts.updater.advance_schedule()
            return {"optim/skipped": 1.0}
        every = self._parts.recipe.tracking.log_completions_every
        if result.not_finite or number == 1 or number % every == 0:
            file = write_samples(self._run.samples, number, result, self._parts.policy.tokenizer)
            if result.not_finite:
                self._warn(f"step {number} was skipped: {result.not_finite} was not finite; its completions: {file}")
        metrics = step_metrics(result, clock)
        if self._parts.recipe.objective.audit:
            metrics |= audit_metrics(self._parts.recipe, result, self._parts.policy.eos_token_ids)
        return metrics


class _SftStepper:
    def __init__(self, parts: SftParts, order: PromptOrder) -> None:
        self._parts, self._order = parts, order

    def run(self, number: int) -> dict[str, float]:
        return sft_step(self._parts, self._order.step(number), clock=Stopwatch())


@dataclass(slots=True)
class _Loop:
    """Steps, metrics, checkpoints, and what to do when something goes wrong."""

    recipe: Recipe
    run_folder: RunFolder
    store: CheckpointStore
    setup: Setup
    updater: Updater
    trackers: Trackers
    stepper: _Stepper
    safety: Safety
    held_out: HeldOut | None
    total_steps: int
    best: Best

    def run(self, state: CheckpointState) -> TrainResult:
        training = self.recipe.training
        stop: Stop | None = None
        with interrupt_flag() as interrupted:
            for number in range(state.step + 1, self.total_steps + 1):
                metrics = self.stepper.run(number)
                if self._evaluates_after(number):
                    metrics |= self._evaluate()
                seen = self.safety.look(metrics)
                self.trackers.log(number, metrics)
                self.best.note(metrics)
                stop = self.safety.act(number, metrics, seen, state)
                if interrupted and stop is None:
                    stop = Stop(reason(interrupted), save=True)
                due = number % training.save_every == 0 or number == self.total_steps
                if (stop is None and due) or (stop is not None and stop.save):
                    state = self._save(number, state, scheduled=due, stop=stop)
                if stop is not None:
                    break
        return TrainResult(self.run_folder, state.step, self.total_steps, None if stop is None else stop.reason)

    def _evaluates_after(self, number: int) -> bool:
        every = self.recipe.training.eval_every
        return every is not None and (number % every == 0 or number == self.total_steps)

    def _evaluate(self) -> dict[str, float]:
        assert self.held_out is not None
        metrics = self.held_out.evaluate()
        rates = {name: value for name, value in metrics.items() if name.endswith("/accuracy_rate")}
        self.trackers.message("held out: " + ", ".join(f"{name} {value:.3f}" for name, value in rates.items()))
        return metrics

    def _save(self, number: int, before: CheckpointState, *, scheduled: bool, stop: Stop | None) -> CheckpointState:
        best = self.best.choose(number, before) if scheduled else (before.best_step, before.best_value)
        state = CheckpointState(
            number,
            self.trackers.position,
            *best,
            scheduled=scheduled,
            rollbacks=self.safety.rollbacks,
            stopped=stop.reason if stop is not None and stop.for_good else None,
        )
        self.store.save(state, self.setup.policy, {"updater": self.updater.state_dict()})
        return state


def newest_state(store: CheckpointStore, say: Say) -> CheckpointState:
    """Of the newest checkpoint that is whole; damaged ones are set aside. Step 0 without any."""
    step, problems = store.newest_intact()
    for problem in problems:
        say(problem)
    if step is None:
        return CheckpointState(step=0, metrics_bytes=0)
    for path in store.set_aside(after=step):
        say(f"set aside as {path}; going on from step {step}")
    return store.load_state(step)
