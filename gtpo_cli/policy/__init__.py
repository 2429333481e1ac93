"""Policies: the models in training. `load_policy` loads a job's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gtpo_cli.job import Job
from gtpo_cli.policy.policy import Policy

__all__ = ["Policy", "load_policy"]


def load_policy(
    job: Job,
    *,
    temperature: float | None = None,
    with_engine: bool = True,
    with_reference: bool = True,
    trains: bool = True,
    start: Path | None = None,
) -> Policy:
    """Load a job's model with its adapter. Raises ModelError with the remedy.

    `start`: weights that `Policy.save` wrote, an adapter or the whole model, to start training from. They are part of
    the reference model of a KL term.

    `temperature`: of its distributions, if not that of the samples. `with_engine`: start the engine that shares the
    policy's weights, if the job uses one; False if nothing will be sampled. `with_reference`: keep the reference of a
    KL term, if there is one. `trains`: keep trained weights in float32 for any computation type; False if they are only
    measured.
    """
    from gtpo_cli.policy.loading import read_model
    from gtpo_cli.policy.transformers_policy import TransformersPolicy, load_transformers_policy

    model, rollout = job.recipe.model, job.recipe.rollout
    whole = start is not None and (start / "config.json").is_file()
    settings: dict[str, Any] = {
        "files": read_model(model, str(start)) if whole else job.model,
        "temperature": rollout.temperature if temperature is None else temperature,
        "with_reference": with_reference and trains and job.recipe.objective.kl_coef > 0,
        "seed": job.recipe.seed,
        "trains": trains,
    }
    if job.engines.backend == "unsloth":
        from gtpo_cli.policy.unsloth_policy import load_unsloth_policy

        engine = rollout if job.engines.shared and with_engine else None
        policy: TransformersPolicy = load_unsloth_policy(model, **settings, engine=engine)
    else:
        policy = load_transformers_policy(model, **settings)
    if start is not None and not whole:
        policy.start_from(start, as_reference=settings["with_reference"])
    return policy
