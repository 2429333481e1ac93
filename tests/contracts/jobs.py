"""From a recipe straight to its policy and sampler."""

from __future__ import annotations

from typing import Any

from gtpo_cli.evaluation.loading import Subject
from gtpo_cli.job import Job, TrainingJob
from gtpo_cli.machine.resolve import Parts, measuring_job
from gtpo_cli.policy import Policy, load_policy
from gtpo_cli.policy.sampler import Sampler, load_sampler
from gtpo_cli.recipe import Recipe
from gtpo_cli.runs.checkpoints import Checkpoint


def job_of(recipe: Recipe) -> Job:
    return Parts(recipe).job()


def training_job_of(recipe: Recipe) -> TrainingJob:
    return Parts(recipe).training_job()


def subject_of(recipe: Recipe, checkpoint: Checkpoint | None = None, *, streaming: bool = False) -> Subject:
    """What an evaluation measures: the untrained model, or a checkpoint."""
    job = measuring_job(recipe, checkpoint, temperature=recipe.evaluation.temperature, streaming=streaming)
    return Subject("base" if checkpoint is None else f"step-{checkpoint.step:06d}", job, checkpoint)


def policy_of(recipe: Recipe, **options: Any) -> Policy:
    return load_policy(job_of(recipe), **options)


def sampler_of(policy: Policy, recipe: Recipe) -> Sampler:
    return load_sampler(policy, job_of(recipe))
