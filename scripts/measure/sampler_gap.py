"""How far apart are a sampler and its policy, and what weights would tokens get for that?

    python scripts/measure/sampler_gap.py RUN                              # as the run was set up
    python scripts/measure/sampler_gap.py RUN --set rollout.engine=vllm    # on other engines, in other types
    python scripts/measure/sampler_gap.py RUN --policy model.dtype=float32 # and other policies on the same

Samples from the run's newest checkpoint and updates nothing. It prints rows of the table in docs/engines.md:
sampler/gap_mean and sampler/gap_max; the weights w = min(pi / q, 2) of `rollout.importance_correction: truncated`, and
their distance from 1 (root of the mean square).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import torch

from gtpo_cli.job import TrainingJob
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.objective import importance_weights
from gtpo_cli.policy import Policy, load_policy
from gtpo_cli.policy.loading import set_threads
from gtpo_cli.policy.sampler import Sampler, SamplingParams, collate, load_sampler, sample
from gtpo_cli.recipe import Recipe
from gtpo_cli.runs.checkpoints import choose_checkpoint
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.training.step_metrics import sampler_metrics
from gtpo_cli.types import Group

COLUMNS = ("sampler", "policy", "tokens", "gap mean", "gap max", "w least", "w largest", "w at 2", "w from 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--policy", action="append", default=[], metavar="KEY=VALUE", help="one more policy, with this")
    parser.add_argument("--tokens", type=int, default=1000, help="sample at least so many")
    options = parser.parse_args()
    run = RunFolder(options.run)
    start = choose_checkpoint(run, "last").model
    job = Parts(run.recipe_to_run(options.set)).training_job()
    policy = load_policy(job, start=start)
    set_threads(policy)
    groups = sample_tokens(load_sampler(policy, job), job, options.tokens)
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    sampler = _name(job.recipe, job.engines.engine)
    print(row(sampler, _name(job.recipe, job.engines.backend), policy, groups), flush=True)
    for changes in options.policy:
        other = Parts(run.recipe_to_run([*options.set, changes, "rollout.engine=transformers"])).job()
        policy = load_policy(other, start=start)
        print(row(sampler, _name(other.recipe, other.engines.backend), policy, groups), flush=True)


def sample_tokens(sampler: Sampler, job: TrainingJob, tokens: int) -> list[Group]:
    """Groups of the job's training problems, step after step."""
    rollout, order = job.recipe.rollout, job.data.order
    groups: list[Group] = []
    for number in count(1):
        params = SamplingParams(rollout.temperature, max_completion_tokens=rollout.max_completion_tokens, seed=number)
        groups += sample(sampler, order.step(number), rollout.group_size, params)
        if sum(len(c.token_ids) for group in groups for c in group.completions) >= tokens:
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


def _name(recipe: Recipe, library: str) -> str:
    return f"{library}, {recipe.model.dtype}" + (", NF4" if recipe.model.load_in_4bit else "")


if __name__ == "__main__":
    main()
