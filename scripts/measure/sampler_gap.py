"""How far apart are a sampler and its policy, and what would weighing tokens by that change?

    python scripts/measure/sampler_gap.py RUN                              # as the run was set up
    python scripts/measure/sampler_gap.py RUN --set rollout.engine=vllm    # on other engines, in other types
    python scripts/measure/sampler_gap.py RUN --policy model.dtype=float32 # and other policies on the same
    python scripts/measure/sampler_gap.py RUN --gradient                   # and what weights change in a step

Samples from the run's newest checkpoint and updates nothing. It prints rows of the table in docs/engines.md:
sampler/gap_mean and sampler/gap_max; the weights w = min(pi / q, 2) of `rollout.importance_correction: truncated`, and
their distance from 1 (root of the mean square). --gradient: what they change in a step's gradient (`Effect`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Generator, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gtpo_cli.job import TrainingJob
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.objective import importance_weights
from gtpo_cli.policy import Policy, load_policy
from gtpo_cli.policy.loading import set_threads
from gtpo_cli.policy.packing import training_budget
from gtpo_cli.policy.sampler import Sampler, SamplingParams, collate, load_sampler, sample
from gtpo_cli.recipe import Recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.checkpoints import choose_checkpoint
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.training.generations import StepPrompts, sample_steps
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.step import StepParts, train_step
from gtpo_cli.training.step_metrics import sampler_metrics
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Completion, Group

SCALE = 2.0**16  # of the loss, so that float16 holds its gradient


class Effect(NamedTuple):
    """What the weights do to a step's gradient g.

    `change`: |g with them - g| / |g|. `noise`: |g of half of the groups - g| / |g|. `agreement`: cosine between the
    changes in the two halves; near 0 they are noise, near 1 a bias of g.
    """

    change: float
    noise: float
    agreement: float


COLUMNS = ("sampler", "policy", "tokens", "gap mean", "gap max", "w least", "w largest", "w at 2", "w from 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--base", action="store_true", help="the untrained model, with a new adapter")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--policy", action="append", default=[], metavar="KEY=VALUE", help="one more policy, with this")
    parser.add_argument("--gradient", action="store_true", help="also what the weights change in the gradient")
    parser.add_argument("--tokens", type=int, default=1000, help="sample at least so many")
    options = parser.parse_args()
    run = RunFolder(options.run)
    start = None if options.base else choose_checkpoint(run, "last").model
    recipe = run.recipe_to_run(options.set)
    job = Parts(recipe).training_job()
    policy = load_policy(job, start=start)
    set_threads(policy)
    groups = sample_tokens(load_sampler(policy, job), job, options.tokens)
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    sampler = _name(job.recipe, job.engines.engine)
    print(row(sampler, _name(job.recipe, job.engines.backend), policy, groups), flush=True)
    if options.gradient:
        found = effect(policy, recipe, groups, run.initial_entropy() or math.inf)
        print(
            f"the weights change the gradient by {found.change:.2g} of its length; the noise of sampling is "
            f"{found.noise:.2g}; cosine of the changes in both halves {found.agreement:.2g}"
        )
    for changes in options.policy:
        other = Parts(run.recipe_to_run([*options.set, changes, "rollout.engine=transformers"])).job()
        policy = load_policy(other, start=start)
        print(row(sampler, _name(other.recipe, other.engines.backend), policy, groups), flush=True)


def sample_tokens(sampler: Sampler, job: TrainingJob, tokens: int) -> list[Group]:
    """Groups of the job's training problems, step after step, an even number of them."""
    rollout, order = job.recipe.rollout, job.data.order
    groups: list[Group] = []
    for number in count(1):
        params = SamplingParams(rollout.temperature, max_completion_tokens=rollout.max_completion_tokens, seed=number)
        groups += sample(sampler, order.step(number), rollout.group_size, params)
        if len(groups) % 2 == 0 and sum(len(c.token_ids) for group in groups for c in group.completions) >= tokens:
            return groups
    raise AssertionError("count ends")


@torch.no_grad()
def row(sampler: str, name: str, policy: Policy, groups: Sequence[Group]) -> str:
    """Of the table: the policy beside the sampler of the groups."""
    rows = collate(groups, device=policy.device)
    logp = policy.token_logprobs(rows)[0]
    gap = sampler_metrics(logp, rows)
    w = importance_weights(logp, rows.sampled_NT)[rows.mask_NT]
    figures = (
        gap["sampler/gap_mean"], gap["sampler/gap_max"], w.min(), w.max(), (w == 2).float().mean(),
        (w - 1).square().mean().sqrt(),
    )  # fmt: skip
    return " | ".join([f"| {sampler}", name, str(len(w)), *(f"{float(figure):.2g}" for figure in figures)]) + " |"


def effect(policy: Policy, recipe: Recipe, groups: Sequence[Group], initial_entropy: float) -> Effect:
    """Of the weights on the gradient of a step of these groups, an even number of them."""
    longest = max(len(group.prompt_ids) + recipe.rollout.max_completion_tokens for group in groups)
    budget = training_budget("auto", longest_row=longest, warn=print)
    gradient = Gradient(policy.trainable_parameters())
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:

        def of(part: Sequence[Group], how: str) -> Tensor:
            rollout = recipe.rollout.model_copy(update={"importance_correction": how})
            parts = StepParts(
                recipe.objective, rollout, policy, Recorded(part), scorer, gradient, initial_entropy, budget
            )
            prompts, clock = [(group.problem, group.prompt_ids) for group in part], Stopwatch()
            (samples,) = sample_steps(parts, [StepPrompts(prompts, seed=0)], clock=clock)
            train_step(parts, samples, clock=clock)
            return gradient.found

        plain, weighted = ([of(groups[half::2], how) for half in (0, 1)] for how in ("none", "truncated"))
    changes = [after - before for before, after in zip(plain, weighted, strict=True)]
    length = (plain[0] + plain[1]).norm()  # a step's loss is a mean over its groups, so of both halves together
    return Effect(
        change=float((changes[0] + changes[1]).norm() / length),
        noise=float((plain[0] - plain[1]).norm() / length),
        agreement=float(torch.cosine_similarity(changes[0], changes[1], dim=0)),
    )


class Recorded:
    """Gives the completions that are there."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups

    def sample(self, *_: object, **__: object) -> list[list[Completion]]:
        return [list(group.completions) for group in self._groups]

    def sample_blocks(self, *_: object, **__: object) -> Generator[tuple[int, list[Completion]], None, None]:
        yield from enumerate(self.sample())

    def sync(self, policy: Policy) -> None:
        pass

    def rehearse(self, *_: object, **__: object) -> None:
        pass


class Gradient(Updater):
    """Keeps a step's gradient, of all trained weights as one vector, and updates nothing."""

    found: Tensor
    learning_rate = 0.0

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = list(parameters)

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def backward(self, loss: Tensor) -> None:
        (SCALE * loss).backward()  # type: ignore[no-untyped-call]  # torch ships it untyped

    def update(self) -> float:
        gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters)
        self.found = torch.cat([gradient.flatten() for gradient in gradients]) / SCALE
        self.zero_grad()
        return float(self.found.norm())

    def advance_schedule(self) -> None:
        pass


def _name(recipe: Recipe, library: str) -> str:
    return f"{library}, {recipe.model.dtype}" + (", NF4" if recipe.model.load_in_4bit else "")


if __name__ == "__main__":
    main()
