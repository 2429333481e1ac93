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

from gtpo_cli.data import Prepared, prepare
from gtpo_cli.errors import CheckpointError
from gtpo_cli.evaluation.probe import probe_entropy, right_at_first, undecided
from gtpo_cli.generation import Sampler
from gtpo_cli.hub import cached_snapshot
from gtpo_cli.models import Engines, Policy, choose_engines, load_policy, load_tokenizer
from gtpo_cli.models.engines import about_compiling, why_auto_is_slow
from gtpo_cli.models.loading import set_threads
from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.rewards import check_columns
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.text import counted
from gtpo_cli.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Setup:
    """A loaded policy and the prepared data, with facts for environment.json."""

    policy: Policy
    engines: Engines
    data: Prepared
    facts: dict[str, Any]


def set_up(
    recipe: Recipe,
    *,
    say: Callable[[str], None],
    samples: bool = True,
    full_steps: bool = False,
    start: Path | None = None,
) -> Setup:
    """Prepare the data, then load the model; `say` gets the lines that a user should read.

    `samples`: whether the run samples; otherwise no engine starts. `full_steps`: as in `data.prepare`. `start`: as in
    `load_policy`.
    Raises DataError, ModelError, RecipeError, RewardError.
    """
    data = prepare(recipe, *load_tokenizer(recipe), full_steps=full_steps)
    if samples:
        check_columns(recipe.rewards, [problem for problem, _ in data.prompts])
    for note in data.notes:
        say(note)
    engines = choose_engines(recipe)
    say(f"{counted(len(data.prompts), 'problem')}; loading {recipe.model.before_training} ({engines})")
    if samples and (compiling := about_compiling(recipe, engines)):
        say(compiling)
    if reason := why_auto_is_slow(recipe):
        say(f"Unsloth and vLLM would be faster but are not used: {reason}")
    sft = recipe.objective.name == "sft"
    with Waiting(say, f"loading {recipe.model.before_training}"):
        # SFT samples nothing that it trains on: its cross-entropy is that of the model's own distribution.
        at = recipe.with_values({"rollout.temperature": 1.0}) if sft else recipe
        policy = load_policy(at, engines=engines, with_engine=samples, start=start)
    set_threads(policy)
    if not sft and (dropout := policy.switch_off_dropout()):
        say(f"the model's own dropout (up to {dropout:g}) is off, since only SFT trains with it (docs/objective.md)")
    if policy.max_seq_length < recipe.model.max_seq_length:
        say(f"model.max_seq_length is lowered to the model's context, {policy.max_seq_length} tokens")
    facts = {
        "model": recipe.model.name,
        "model_commit": _commit(recipe.model),
        "trainable_parameters": sum(parameter.numel() for parameter in policy.trainable_parameters()),
        "backend": engines.backend,
        "engine": engines.engine if samples else None,
        "device": str(policy.device),
        "threads": torch.get_num_threads(),
        "total_steps": data.order.total_steps,
        "problems": len(data.prompts),
        "problems_dropped": data.dropped,
    }
    return Setup(policy, engines, data, facts)


def find_initial_entropy(
    recipe: Recipe, run: RunFolder, setup: Setup, sampler: Sampler, say: Callable[[str], None]
) -> float:
    """Return <H>_ini: the recipe's value, else what this run measured before, else a new measurement."""
    if (recorded := run.initial_entropy()) is not None:
        return recorded
    if (given := recipe.objective.initial_entropy) is not None:
        run.write_initial_entropy({"initial_entropy": given, "source": "recipe"})
        return given
    if run.metrics_file.exists() and run.metrics_file.stat().st_size:
        raise CheckpointError(
            f"{run.path}: initial_entropy.json is missing, and a trained policy cannot be probed again"
        )
    prompts = min(recipe.objective.probe.num_prompts, len(setup.data.prompts))
    say(f"measuring the initial entropy <H>_ini on {counted(prompts, 'problem')}")
    with Waiting(say, "<H>_ini") as waiting:
        probe = probe_entropy(setup.policy, sampler, setup.data.prompts, recipe, progress=waiting.count)
        verdicts, words = right_at_first(recipe, probe)
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


def _commit(model: ModelRecipe) -> str | None:
    """Return the hub commit that the model's name and revision resolved to; None for a folder."""
    path = resolve_name(model.name)
    snapshot = None if Path(path).is_dir() else cached_snapshot(path, model.revision)
    return snapshot.name if snapshot is not None else None
