"""gtpo's own training loop: it sets up the parts of a step, then makes one step after the other.

`step.py` has the algorithm of a step, `run.py` what a run keeps of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gtpo_cli.checkpoints import CheckpointState, CheckpointStore, restore_random_states, seed_random_states
from gtpo_cli.data import PromptOrder
from gtpo_cli.errors import NotFiniteError
from gtpo_cli.generation import load_sampler
from gtpo_cli.job import Job
from gtpo_cli.models import Policy
from gtpo_cli.models.budget import training_budget
from gtpo_cli.recipe import Recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.seeds import derive_seed
from gtpo_cli.text import describe
from gtpo_cli.tracking import Trackers
from gtpo_cli.training import trials
from gtpo_cli.training.interrupts import interrupt_flag
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.run import Run
from gtpo_cli.training.samples_ahead import SamplesAhead
from gtpo_cli.training.setup import find_initial_entropy, set_up
from gtpo_cli.training.start import keep_start, origin
from gtpo_cli.training.step import StepParts, StepPrompts, sample_steps, train_step
from gtpo_cli.training.stopwatch import Stopwatch

if TYPE_CHECKING:
    from gtpo_cli.training.held_out import HeldOut


def train(
    job: Job,
    folder: RunFolder,
    *,
    resume: bool = False,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Run:
    """Train as the job says in an existing run folder; with `resume`, from its newest checkpoint.

    `say` gets the lines that a user should read before the first step. After that the display reports, unless `quiet`.
    Ctrl-C and SIGTERM let the step finish, save and return. Raises GtpoError, which leaves earlier checkpoints intact.
    The caller holds the folder (`RunFolder.held`).
    """
    recipe, prompts, order = job.recipe, job.data.prompts, job.data.order
    run = Run(recipe, folder, resume=resume, say=say)
    with ExitStack() as stack:
        # The scorer comes first, so that a reward that fails to load is reported before the model loads.
        scorer = stack.enter_context(Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens))
        setup = set_up(job, say=say, samples=recipe.generates, start=keep_start(recipe, folder))
        policy = setup.policy
        folder.write_environment(setup.facts | origin(folder))
        folder.keep_problems(job.problem_digests)
        sampler = load_sampler(policy, recipe, job.engines, warn=run.warn) if recipe.generates else None
        seed_random_states(derive_seed(recipe.seed, "torch"))  # after the engine, which seeds with 0 as it starts
        budget = training_budget(recipe.training.micro_batch_size, longest_row=job.data.longest_row, warn=run.warn)
        if policy.device.type in trials.STRESSED:
            tokens = trials.stress_step(recipe, policy, sampler, prompts, budget)
            say(f"the longest row ({tokens} tokens) fits, {budget} at a time in training")
        held_out = None
        if recipe.training.eval_every is not None:
            from gtpo_cli.training.held_out import HeldOut

            assert sampler is not None
            held_out = HeldOut(recipe, policy, sampler, scorer)
        updater = Updater(
            policy.trainable_parameters(), recipe.optimizer, total_steps=order.total_steps, dtype=policy.dtype
        )
        ahead = SamplesAhead(recipe.rollout, prompts, policy)
        if recipe.objective.name == "sft":
            from gtpo_cli.training.sft import sft_step

            initial_entropy = None

            def step(number: int) -> dict[str, float]:
                tags = recipe.rewards.format.tags
                return sft_step(policy, updater, budget, order.step(number), tags=tags, clock=Stopwatch())

        else:
            assert sampler is not None
            initial_entropy = find_initial_entropy(job, folder, policy, sampler, say)
            parts = StepParts(recipe, policy, sampler, scorer, updater, initial_entropy, budget)

            def step(number: int) -> dict[str, float]:
                return _step_on_samples(parts, order, ahead, run, number)

        trained = TrainedPolicy(policy, updater, ahead, run.store)
        if run.step and (warning := trained.restore(run.step)):
            say(warning)
        if resume and recipe != (before := folder.recipe()):
            folder.change(recipe, made=run.step, total=order.total_steps)
            if _length(recipe) != _length(before):
                say(
                    f"the run now has {order.total_steps} steps; the {recipe.optimizer.schedule} learning rate spans "
                    f"all of them and continues with {updater.learning_rate:.3g} at step {run.step + 1}"
                )
        trackers = stack.enter_context(
            run.begin(
                save=trained.save, roll_back=trained.roll_back, total_steps=order.total_steps,
                initial_entropy=initial_entropy, quiet=quiet,
            )
        )  # fmt: skip
        run.signals = stack.enter_context(interrupt_flag(trackers.answer))
        checked_after_update = False
        for number in range(run.step + 1, order.total_steps + 1):
            changes = updater.changes
            try:
                metrics = step(number)
            except Exception as error:
                if updater.changes == changes:  # else the weights are those of no step
                    _save_before(run, number, error)
                raise
            if not checked_after_update and not metrics["optim/skipped"]:
                checked_after_update = True
                trials.check_plain_forward(policy, prompts, as_in_training=recipe.objective.name != "sft")
            if held_out is not None and run.is_due(number, recipe.training.eval_every):
                try:
                    metrics |= _evaluate(held_out, number, trackers)
                except Exception as error:  # the update succeeded, only the evaluation failed
                    run.finish_step(number, metrics)
                    _save_before(run, number + 1, error)
                    raise
            if run.finish_step(number, metrics) is not None:
                break
        return run


def _save_before(run: Run, number: int, error: Exception) -> None:
    """Save the steps before `number`, which failed, and note in the error how to go on."""
    try:
        run.save_before(number)
    except Exception as why:  # noqa: BLE001 - the first error is the one to report
        error.add_note(f"the steps since the last checkpoint could not be saved ({describe(why)})")
    if run.step:
        error.add_note(f"step {run.step} is saved: gtpo train --resume {run.folder.path}")


def _length(recipe: Recipe) -> tuple[int | None, int]:
    return recipe.training.max_steps, recipe.training.epochs


def _step_on_samples(
    parts: StepParts, order: PromptOrder, ahead: SamplesAhead, run: Run, number: int
) -> dict[str, float]:
    """Make a step on sampled completions. Skip it if the sampler meets numbers that are not finite."""
    clock = Stopwatch()
    try:
        if missing := ahead.missing(number, total_steps=order.total_steps):
            ahead.add(missing, sample_steps(parts, [_prompts(order, run, step) for step in missing], clock=clock))
        result = train_step(parts, ahead.take(number), clock=clock)
    except NotFiniteError as error:
        run.warn(f"step {number} was skipped: {error}")
        parts.updater.advance_schedule()
        return {"optim/skipped": 1.0}
    return run.record(number, result, clock, parts.policy)


def _prompts(order: PromptOrder, run: Run, number: int) -> StepPrompts:
    seed = derive_seed(run.recipe.seed, "sample", number)
    return StepPrompts(order.step(number), seed, partial(order.more, number))


def _evaluate(held_out: HeldOut, number: int, trackers: Trackers) -> dict[str, float]:
    metrics, tables = held_out.evaluate()
    for name, rows in tables.items():
        trackers.log_table(number, f"evaluation/{name}", rows)
    rates = {name: value for name, value in metrics.items() if name.endswith("/accuracy_rate")}
    trackers.message("held out: " + ", ".join(f"{name} {value:z.3f}" for name, value in rates.items()))
    return metrics


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """The policy, its optimiser and the samples for coming steps: the contents of a checkpoint."""

    policy: Policy
    updater: Updater
    ahead: SamplesAhead
    store: CheckpointStore

    def save(self, state: CheckpointState) -> None:
        training = {"updater": self.updater.state_dict()}
        if samples := self.ahead.state_dict(after=state.step):
            training["samples_ahead"] = samples
        self.store.save(state, self.policy.save, self.policy.trainable_parameters(), training)

    def restore(self, step: int) -> str | None:
        """Load a checkpoint. Return a warning about the random states, if there is one."""
        self.policy.load(self.store.path(step) / "model")
        with self.store.training(step) as loaded:
            self.updater.load_state_dict(loaded["updater"])
            self.ahead.load_state_dict(loaded.get("samples_ahead", {}), after=step)
            return restore_random_states(loaded["random"])

    def roll_back(self, step: int, factor: float) -> float:
        """Return to the weights and moments of a checkpoint, and return the lowered learning rate.

        Samples for coming steps are dropped, since the abandoned policy drew them.
        """
        self.ahead.drop()
        self.policy.load(self.store.path(step) / "model")
        with self.store.training(step) as loaded:
            return self.updater.roll_back(loaded["updater"], factor)
