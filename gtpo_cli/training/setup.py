"""The setup of a run: prompts, policy, facts about them, and <H>_ini (docs/objective.md, section 5).

Both trainers and the entropy probe use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from gtpo_cli.errors import CheckpointError
from gtpo_cli.evaluation.probe import probe_entropy, right_at_first, undecided
from gtpo_cli.job import TrainingJob
from gtpo_cli.kernels.logprobs import factor_dtype
from gtpo_cli.objective import Method
from gtpo_cli.policy import Policy, load_policy
from gtpo_cli.policy.engines import about_compiling
from gtpo_cli.policy.loading import dtype_name, set_threads
from gtpo_cli.policy.sampler import Sampler
from gtpo_cli.recipe.schema import ObjectiveRecipe
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.terminal.signals import Waiting
from gtpo_cli.text import counted


@dataclass(frozen=True, slots=True)
class Setup:
    """A loaded policy, and facts for environment.json."""

    policy: Policy
    facts: dict[str, Any]


def set_up(
    job: TrainingJob,
    *,
    say: Callable[[str], None],
    samples: bool = True,
    with_reference: bool = True,
    trains: bool = True,
    start: Path | None = None,
) -> Setup:
    """Load the model of a job; `say` gets the lines that a user should read.

    `samples`: whether the run samples; otherwise no engine starts. `with_reference`, `trains`,
    `start`: as in `load_policy`. Raises ModelError.
    """
    recipe, engines, data = job.recipe, job.engines, job.data
    for note in data.notes:
        say(note)
    say(f"{counted(len(data.prompts), 'problem')}; loading {recipe.model.before_training} ({engines})")
    if samples and (compiling := about_compiling(recipe.rollout, engines)):
        say(compiling)
    sft = recipe.objective.name == "sft"
    with Waiting(say, f"loading {recipe.model.before_training}"):
        # SFT samples nothing that it trains on: its cross-entropy is that of the model's own distribution.
        at = 1.0 if sft else None
        policy = load_policy(
            job, temperature=at, with_engine=samples, with_reference=with_reference, trains=trains, start=start
        )
    set_threads(policy)
    if not sft and (dropout := policy.switch_off_dropout()):
        say(f"the model's own dropout (up to {dropout:g}) is off, since only SFT trains with it (docs/objective.md)")
    if policy.max_seq_length < recipe.model.max_seq_length:
        say(f"model.max_seq_length is lowered to the model's context, {policy.max_seq_length} tokens")
    facts = {
        "model": recipe.model.name,
        "model_commit": job.commit,
        "trainable_parameters": sum(parameter.numel() for parameter in policy.trainable_parameters()),
        "backend": engines.backend,
        "engine": engines.engine if samples else None,
        "device": str(policy.device),
        "products": dtype_name(factor_dtype(policy.dtype, policy.device)),
        "threads": torch.get_num_threads(),
        "total_steps": data.order.total_steps,
        "problems": len(data.prompts),
        "problems_dropped": data.dropped,
        "decided": dict(job.decided),
    }
    return Setup(policy, facts)


def find_initial_entropy(
    job: TrainingJob, run: RunFolder, policy: Policy, sampler: Sampler, say: Callable[[str], None]
) -> float:
    """Return <H>_ini: the recipe's value, else what this run measured before, else a new measurement."""
    if (recorded := run.initial_entropy()) is not None:
        return recorded
    recipe, prompts = job.recipe, job.data.prompts
    if (given := recipe.objective.initial_entropy) is not None:
        run.write_initial_entropy({"initial_entropy": given, "source": "recipe"})
        return given
    if run.metrics_file.exists() and run.metrics_file.stat().st_size:
        raise CheckpointError(
            f"{run.path}: initial_entropy.json is missing, and a trained policy cannot be probed again"
        )
    number = min(recipe.objective.probe.num_prompts, len(prompts))
    say(f"measuring the initial entropy <H>_ini on {counted(number, 'problem')}")
    with Waiting(say, "<H>_ini") as waiting:
        probe = probe_entropy(policy, sampler, prompts[:number], recipe.rollout, recipe.seed, progress=waiting.count)
        verdicts, words = right_at_first(recipe.rewards, probe)
    measured, *ends = probe.interval
    run.write_initial_entropy(
        {
            "initial_entropy": measured,
            "source": "probe",
            "interval_95": ends if probe.interval.is_bounded else None,
            "prompts": len(probe.by_prompt),
            "accuracy": fmean(verdict.correct for verdict in verdicts),
            "format": fmean(verdict.complete_format for verdict in verdicts),
        }
    )
    say(
        f"initial entropy <H>_ini = {measured:.4f} nats "
        f"({probe.interval_words}, {counted(len(probe.by_prompt), 'prompt')})"
    )
    if doubt := undecided(probe, recipe.objective.filter.enabled):
        say(doubt)
    say(words)
    return measured


def method_of(objective: ObjectiveRecipe, *, max_completion_tokens: int) -> Method:
    """Return the arguments of the objective's functions. `max_completion_tokens`: the divisor of `average: budget`."""
    conflict, clip, by_weight = objective.conflict, objective.clip, objective.ratio == "weight"
    return Method(
        advantage_scale=objective.advantage_scale,
        baseline=objective.baseline,
        alignment="prefix" if conflict.alignment == "prefix" else "position",
        span="all" if conflict.alignment == "anywhere" else "ends",
        positive_weight=conflict.positive_weight if conflict.enabled else 1.0,
        negative_weight=conflict.negative_weight if conflict.enabled else 1.0,
        filter=objective.filter.enabled,
        threshold=objective.filter.threshold,
        only_negative=objective.filter.only_negative,
        entropy_coef=objective.entropy_coef,
        kl_coef=objective.kl_coef,
        ratio="sequence" if objective.ratio == "sequence" else "token",
        clip=(clip.low, clip.high),
        clip_target="weight" if by_weight else "objective",
        average=max_completion_tokens if objective.average == "budget" else objective.average,
    )
