"""Train and evaluate from a script or a notebook, as `gtpo train` and `gtpo eval` do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from gtpo_cli.data.unseen import load_benchmark
from gtpo_cli.errors import WORDS, RecipeError, Terminated
from gtpo_cli.evaluation.loading import PolicyLoader, Subject
from gtpo_cli.evaluation.measure import evaluate as evaluate_one
from gtpo_cli.evaluation.measure import find_evaluation
from gtpo_cli.evaluation.store import Results
from gtpo_cli.machine.ready import resolve
from gtpo_cli.machine.resolve import measuring_job
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.checkpoints import choose_checkpoint
from gtpo_cli.runs.folder import NO_TRUST, RunFolder, Trust, new_run
from gtpo_cli.training import loop


def train(recipe: Recipe | str | Path, overrides: Sequence[str] = (), *, quiet: bool = False) -> RunFolder:
    """Train a new run and return its folder.

    `recipe`: the name of a shipped recipe, a file, or a `Recipe`. `overrides`: as with --set, such as
    `["training.max_steps=100"]`; a `Recipe` takes none. `quiet` leaves the display out. Ctrl-C lets the step finish,
    saves, and ends with Terminated; `gtpo train --resume` goes on. Raises GtpoError.
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(str(recipe), overrides)
    elif overrides:
        raise TypeError("overrides are for a recipe's name or file: recipe.with_values({key: value}) changes a Recipe")
    job = resolve(recipe)
    recipe, folder = new_run(job.recipe)
    job = job.named(recipe.run_name)
    with folder.held(job.kept):
        done = loop.train(job, folder, quiet=quiet, say=_ignore if quiet else print)
    if (number := next((number for number, word in WORDS.items() if word == done.stopped), None)) is not None:
        raise Terminated(number)
    return folder


def evaluate(
    run: RunFolder | str | Path,
    overrides: Sequence[str] = (),
    *,
    checkpoint: Literal["best", "last"] | int = "best",
    trust: Trust = NO_TRUST,
) -> dict[str, Results]:
    """Evaluate a run's checkpoint (best, last or a step) on unseen problems: results by the benchmark's name.

    `results["gsm8k"].scores["accuracy"].interval` is the mean over problems with its 95 % interval. `overrides`: keys
    of the section `evaluation`, such as `["evaluation.samples=64", "evaluation.pass_k=[1,64]"]`. What is stored in the
    run's folder is only read. `trust`: the foreign code that may run, as with --trust-run-code. Raises GtpoError.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder(Path(run))
    if others := [override for override in overrides if not override.startswith("evaluation.")]:
        raise RecipeError(f"evaluate: {others[0]}: only keys of the section evaluation; gtpo eval --set takes others")
    recipe, chosen = folder.recipe_to_run(overrides, trust=trust), choose_checkpoint(folder, checkpoint)
    job = measuring_job(recipe, chosen, temperature=recipe.evaluation.temperature)
    recipe, subject, loader = job.recipe, Subject(f"step-{chosen.step:06d}", job, chosen, kept=True), PolicyLoader()
    results: dict[str, Results] = {}
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        for name in recipe.evaluation.benchmarks:
            benchmark = load_benchmark(recipe, name, job.encoder, max_seq_length=job.model.context)
            stored, load = find_evaluation(folder, benchmark, subject), partial(loader.load, subject)
            results[name] = evaluate_one(recipe.evaluation, load, benchmark, stored, scorer, seed=recipe.seed)
    return results


def _ignore(text: str) -> None:
    pass
