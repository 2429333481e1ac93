"""<H>_ini of a run: from the recipe, from the run folder, or measured before step 1 (docs/objective.md, section 5)."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from gtpo_cli.errors import CheckpointError
from gtpo_cli.evaluation.probe import probe_entropy, right_at_first
from gtpo_cli.generation import Sampler
from gtpo_cli.recipe import Recipe
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.text import counted
from gtpo_cli.training.setup import Setup
from gtpo_cli.waiting import Waiting


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
    measured, low, high = probe.interval
    run.write_initial_entropy(
        {
            "initial_entropy": measured,
            "source": "probe",
            "interval_95": [low, high],
            "prompts": len(probe.by_prompt),
            "completions_per_prompt": recipe.objective.probe.completions_per_prompt,
            "accuracy": fmean(verdict.correct for verdict in verdicts),
            "format": fmean(verdict.complete_format for verdict in verdicts),
        }
    )
    say(
        f"initial entropy <H>_ini = {measured:.4f} nats "
        f"(95 % interval {low:.4f} to {high:.4f}, {counted(len(probe.by_prompt), 'prompt')})"
    )
    say(words)
    return measured
