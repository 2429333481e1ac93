"""Options of gtpo eval: apply them to the recipe, and refuse overrides that have no effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from gtpo_cli.errors import EvaluationError, RecipeError
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.recipe.data import GYM, KNOWN, is_task
from gtpo_cli.recipe.schema import default_ks
from gtpo_cli.text import did_you_mean

# Recipe keys that an evaluation does not read, and what to use instead.
NOT_READ = {
    "data.split": "use --split",
    "data.limit": "use --limit",
    "data.shuffle": "problems are asked in the order of the data",
    "rollout.temperature": "use evaluation.temperature",
    "rollout.group_size": "use --pass-k, or evaluation.samples",
}


def check_read(keys: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise RecipeError if an overridden key has no effect, because gtpo eval does not read it or an option sets it.

    `options` maps keys to the options' values, None for an option that was not given."""
    problems = [f"--set {key}: gtpo eval does not read it; {NOT_READ[key]}" for key in keys if key in NOT_READ]
    twice = [key for key in keys if options.get(key) is not None]
    problems += [f"--set {key}: an option sets it too; leave one of them out" for key in twice]
    if problems:
        raise RecipeError(problems)


def check_split(own: Recipe, changed: Recipe) -> None:
    """Raise RecipeError if overrides change which questions count as held out."""
    if own.data.held_out != changed.data.held_out:
        raise RecipeError(
            f"--set data.held_out: this run was trained with {own.data.held_out:g}: another split would contain "
            "questions it has seen; leave it out, or name other data with --data-path"
        )


def local_benchmarks(recipe: Recipe, data_path: Path | None) -> list[str] | None:
    """Return the recipe's benchmarks with generated ones replaced by `local`; None if --data-path replaces none."""
    names = list(recipe.evaluation.benchmarks)
    generated = [name for name in names if is_task(name)]
    if data_path is None or not generated:
        return None
    print(f"{generated[0]} is generated, so {data_path} is read as local (its columns: --set data.columns)", flush=True)
    return ["local" if is_task(name) else name for name in names]


def with_options(
    recipe: Recipe,
    benchmarks: list[str] | None,
    pass_k: str | None,
    maj_k: str | None,
    limit: int | None,
    temperature: float | None = None,
    *,
    samples_given: bool = False,
) -> Recipe:
    """Apply the options to the recipe's `evaluation` section. With `samples_given`, the number of completions was set
    by itself and does not follow from the largest k."""
    settings = recipe.evaluation
    changes: dict[str, Any] = {}
    if benchmarks:
        changes["benchmarks"] = tuple(_benchmark_name(name) for name in benchmarks)
    if limit is not None:
        changes["limit"] = limit
    if temperature is not None:
        changes["temperature"] = temperature
    if (pass_k or maj_k) and changes.get("temperature", settings.temperature) == 0.0:
        raise typer.BadParameter("--pass-k and --maj-k: at temperature 0 all completions of a problem are the same")
    pass_ks = () if pass_k is None else _parse_ks(pass_k, "--pass-k", first=1)
    majority_ks = () if maj_k is None else _parse_ks(maj_k, "--maj-k", first=4)
    if pass_ks or majority_ks:
        samples = max((*pass_ks, *majority_ks, 0 if pass_ks else settings.samples))
        samples = settings.samples if samples_given else samples
        changes["samples"] = samples
        for key, ks in (("pass_k", pass_ks), ("majority_k", majority_ks)):
            own = getattr(settings, key)
            usual = own == default_ks(settings.samples)[key]
            changes[key] = ks or (default_ks(samples)[key] if usual else tuple(k for k in own if k <= samples))
    document = recipe.model_dump(mode="json")
    return build_recipe(document | {"evaluation": document["evaluation"] | changes}, where="gtpo eval")


def _parse_ks(text: str, option: str, *, first: int) -> tuple[int, ...]:
    """Parse the k's of an option: "64" becomes first, 2 first, ..., 64; "1,8,64" stays a list."""
    try:
        ks = sorted({int(part) for part in text.split(",")})
    except ValueError:
        ks = [0]
    if ks[0] < 1:
        raise typer.BadParameter(f"{option} {text}: expected a number like 64, or a list like 1,8,64")
    if "," in text:
        return tuple(ks)
    largest = ks[0]
    powers = [first * 2**i for i in range(largest.bit_length()) if first * 2**i < largest]
    return (*powers, largest)


def _benchmark_name(name: str) -> str:
    if name not in KNOWN and not is_task(name):
        hint = did_you_mean(name, KNOWN, f"there are {', '.join(KNOWN)}, {GYM}NAME (gtpo tasks), and FILE.py:CLASS")
        raise EvaluationError(f"--benchmark {name}: no such benchmark; {hint}")
    return name
