"""gtpo's own training loop: build the parts of a run from its job, then make one step after the other.

`step.py` has the algorithm of a step, `run.py` what a run keeps of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gtpo_cli.errors import NotFiniteError
from gtpo_cli.job import TrainingJob
from gtpo_cli.policy import Policy
from gtpo_cli.policy.packing import Budget, training_budget
from gtpo_cli.policy.sampler import load_sampler
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.checkpoints import CheckpointState, CheckpointStore, restore_random_states, seed_random_states
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.seeds import derive_seed
from gtpo_cli.terminal.console import Console
from gtpo_cli.tracking.tracker import warn_on
from gtpo_cli.training import trials
from gtpo_cli.training.difficulty import Difficulty
from gtpo_cli.training.generations import Generations
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.run import Outcome, Run, newest_state, open_run
from gtpo_cli.training.setup import find_initial_entropy, set_up
from gtpo_cli.training.start import keep_start, record_facts
from gtpo_cli.training.step import StepParts, train_step
from gtpo_cli.training.stopwatch import Stopwatch

if TYPE_CHECKING:
    from gtpo_cli.training.held_out import HeldOut

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What all steps of a run need. `step` and `generations` are None for SFT, which samples nothing to train on."""

    policy: Policy
    updater: Updater
    budget: Budget
    store: CheckpointStore
    step: StepParts | None = None
    generations: Generations | None = None
    difficulty: Difficulty | None = None
    held_out: HeldOut | None = None

    def save(self, state: CheckpointState) -> None:
        training: dict[str, Any] = {"updater": self.updater.state_dict()}
        if self.generations is not None and (samples := self.generations.state_dict(after=state.step)):
            training["samples_ahead"] = samples
        if self.difficulty is not None:
            training["difficulty"] = self.difficulty.state_dict()
        self.store.save(state, self.policy.save, self.policy.trainable_parameters(), training)

    def restore(self, step: int) -> str | None:
        """Load a checkpoint. Return a warning about the random states, if there is one."""
        self.policy.load(self.store.path(step) / "model")
        with self.store.training(step) as loaded:
            self.updater.load_state_dict(loaded["updater"])
            if self.generations is not None:
                self.generations.load_state_dict(loaded.get("samples_ahead", {}), after=step)
            if self.difficulty is not None:
                self.difficulty.load_state_dict(loaded["difficulty"])
            return restore_random_states(loaded["random"])

    def roll_back(self, step: int, factor: float) -> float:
        """Return to the weights and moments of a checkpoint, and return the lowered learning rate.

        Samples for coming steps are dropped, since the abandoned policy drew them.
        """
        if self.generations is not None:
            self.generations.drop()
        self.policy.load(self.store.path(step) / "model")
        with self.store.training(step) as loaded:
            return self.updater.roll_back(loaded["updater"], factor)


def train(
    job: TrainingJob, folder: RunFolder, *, resume: bool = False, quiet: bool = False, say: Say = lambda text: None
) -> Outcome:
    """Train as the job says in an existing run folder; with `resume`, from its newest checkpoint.

    `say` gets the lines that a user should read before the first step. After that the display reports, unless `quiet`.
    Ctrl-C and SIGTERM let the step finish, save and return. Raises GtpoError, which leaves earlier checkpoints intact.
    The caller holds the folder (`RunFolder.held`).
    """
    recipe, console, total = job.recipe, Console(), job.data.order.total_steps
    state = newest_state(recipe, folder, say) if resume else None
    with build(job, folder, say=say, warn=warn_on(console)) as parts:
        if state is not None and state.step and (warning := parts.restore(state.step)):
            say(warning)
        if state is not None:
            _keep_recipe(job, folder, state, parts.updater, say)
        initial_entropy = None if parts.step is None else parts.step.initial_entropy
        with open_run(
            recipe, folder, parts, state=state, total_steps=total, initial_entropy=initial_entropy, console=console,
            quiet=quiet, say=say,
        ) as run:  # fmt: skip
            updated = False
            for number in run.steps():
                with run.attempt(number, parts.updater):
                    metrics = make_step(job, parts, run, number)
                if not updated and not metrics["optim/skipped"]:
                    updated = True
                    trials.check_plain_forward(parts.policy, job.data.prompts, as_in_training=parts.step is not None)
                if parts.held_out is not None and run.is_due(number, recipe.training.eval_every):
                    with run.attempt_after(number, metrics):
                        metrics |= parts.held_out.evaluate(number, run.trackers)
                run.finish_step(number, metrics)
            return run.outcome


def make_step(job: TrainingJob, parts: LoopParts, run: Run, number: int) -> dict[str, float]:
    """Make one step and return its metrics. Skip it if the sampler meets numbers that are not finite."""
    clock = Stopwatch()
    if parts.step is None or parts.generations is None:
        from gtpo_cli.training.sft import sft_step

        prompts = job.data.order.step(number)
        return sft_step(parts.policy, parts.updater, parts.budget, prompts, job.encoder, clock=clock)
    try:
        samples = parts.generations.take(number, clock=clock)
        rows = train_step(parts.step, samples, clock=clock, check=trials.check_sampler)
    except NotFiniteError as error:
        run.warn(f"step {number} was skipped: {error}")
        parts.updater.advance_schedule()
        return {"optim/skipped": 1.0}
    by_task = {} if parts.difficulty is None else parts.difficulty.observe(samples.outcomes)
    return run.record(number, rows, clock, parts.policy) | by_task


@contextmanager
def build(job: TrainingJob, folder: RunFolder, *, say: Say, warn: Say) -> Iterator[LoopParts]:
    """Build what the steps need from the finished values of a job: policy, sampler, scorer, updater.

    On a GPU the longest possible step is tried first. The run's folder gets facts about the machine and the model, and
    <H>_ini. `warn` gets a sentence if memory runs out and fewer completions are worked on at a time.
    """
    recipe, prompts, order = job.recipe, job.data.prompts, job.data.order
    # The scorer comes first, so that a reward that fails to load is reported before the model loads.
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        setup = set_up(job, say=say, samples=recipe.generates, start=keep_start(recipe.model, folder))
        policy = setup.policy
        record_facts(folder, setup.facts, say)
        folder.keep_beginning(job.problem_digests, job.code_digests)
        sampler = load_sampler(policy, job, warn=warn) if recipe.generates else None
        seed_random_states(derive_seed(recipe.seed, "torch"))  # after the engine, which seeds with 0 as it starts
        budget = training_budget(recipe.training.micro_batch_size, longest_row=job.data.longest_row, warn=warn)
        if policy.device.type in trials.STRESSED:
            tokens = trials.stress_step(job, policy, sampler, budget)
            say(f"the longest row ({tokens} tokens) fits, {budget} at a time in training")
        held_out = None
        if job.held_out and sampler is not None:
            from gtpo_cli.training.held_out import HeldOut

            held_out = HeldOut(job, policy, sampler, scorer)
        updater = Updater(
            policy.trainable_parameters(), recipe.optimizer, total_steps=order.total_steps, dtype=policy.dtype
        )
        step = generations = difficulty = None
        if sampler is not None and recipe.objective.name != "sft":
            initial_entropy = find_initial_entropy(job, folder, policy, sampler, say)
            step = StepParts(
                recipe.objective, recipe.rollout, policy, sampler, scorer, updater, initial_entropy, budget
            )
            if recipe.data.mixture or recipe.data.curriculum is not None or recipe.data.rest_after is not None:
                difficulty = Difficulty(prompts, recipe.data.curriculum, recipe.data.rest_after)
            generations = Generations(step, prompts, order, seed=recipe.seed, difficulty=difficulty)
        store = CheckpointStore(folder.checkpoints, keep_last=recipe.training.keep_last)
        yield LoopParts(policy, updater, budget, store, step, generations, difficulty, held_out)


def _keep_recipe(job: TrainingJob, folder: RunFolder, state: CheckpointState, updater: Updater, say: Say) -> None:
    """Keep the recipe that a resumed run continues with, if it has changed, and say what a new end means."""
    before, now, total = folder.recipe(), job.kept, job.data.order.total_steps
    if now == before:
        return
    folder.change(now, made=state.step, total=total)
    if (now.training.max_steps, now.training.epochs) != (before.training.max_steps, before.training.epochs):
        say(
            f"the run now has {total} steps; the {now.optimizer.schedule} learning rate spans all of them and "
            f"continues with {updater.learning_rate:.3g} at step {state.step + 1}"
        )
