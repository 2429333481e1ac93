"""A sweep's file: named sets of overrides, the recipe for them, seeds, and the figures of each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import (
    Recipe,
    describe_problems,
    find_recipe,
    find_sweep,
    load_recipe,
    overridden_keys,
    read_mapping,
)
from gtpo_cli.recipe.section import Section, flatten, recipe_differences
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tools.sweep.figures import Figure, default_figures, parse_figure, values_of
from gtpo_cli.tracking import read_metrics
from gtpo_cli.training.best import more_is_better, not_measured

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*$")]
_OWN_KEYS = {
    "seed": "write seeds into its file, or --seeds 1,2,3",
    "run_name": "a run is named by variant and seed",
    "output_dir": "choose the sweep's folder with --out FOLDER",
}


class TuneFile(Section):
    """A key that each variant has at its best value, which runs with seeds of their own choose."""

    key: str = Field("optimizer.learning_rate", description="dotted key, which `set` and variants leave out")
    values: tuple[Any, ...] = Field(description="its values, for each variant", min_length=2)
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = Field(
        (101, 102), min_length=1, description="seeds of the runs that choose, none of which is in `seeds`"
    )
    by: Annotated[Figure, BeforeValidator(parse_figure)] | None = Field(
        None, description="the figure whose best mean chooses; default: test accuracy where there is one, else accuracy"
    )


class SweepFile(Section):
    """The keys of a sweep's file."""

    about: str = Field("", description="one line: the question")
    recipe: str = Field(description="the recipe of the variants without --recipe: a file, or a shipped recipe")
    set: dict[str, Any] = Field(default_factory=dict, description="overrides for all runs, by dotted key")
    variants: dict[Name, dict[str, Any]] = Field(description="overrides of each variant", min_length=1)
    baseline: str | None = Field(None, description="the variant to compare others with; default: the first")
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = Field(
        (1, 2, 3, 4, 5), min_length=1, description="seed of each run"
    )
    figures: dict[str, Annotated[Figure, BeforeValidator(parse_figure)]] = Field(
        default_factory=dict, description='e.g. {accuracy: "last train/accuracy_rate"}; default: default_figures'
    )
    window: float = Field(0.05, gt=0.0, le=1.0, description="share of the steps that first, last and running means use")
    tune: TuneFile | None = Field(None, description="a key, such as the learning rate, that is chosen for each variant")
    jobs: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="runs at the same time, unless --jobs says")
    seconds: float | None = Field(None, gt=0, description="measured time of one run of the file's own recipe")

    @model_validator(mode="after")
    def _check(self) -> SweepFile:
        problems = []
        if self.baseline is not None and self.baseline not in self.variants:
            problems.append(f"baseline: {self.baseline} is not a variant; choose from {', '.join(self.variants)}")
        if len(set(self.seeds)) < len(self.seeds):
            problems.append("seeds: a seed is named twice, which would be the same run again")
        if (tune := self.tune) is not None:
            if both := set(self.seeds) & set(tune.seeds):
                problems.append(
                    f"tune.seeds: {min(both)} is one of seeds; a run that has chosen a value cannot also measure it"
                )
            for name, given in (("seeds", tune.seeds), ("values", tune.values)):
                if any(value in given[:place] for place, value in enumerate(given)):
                    problems.append(f"tune.{name}: one is named twice, which would be the same run again")
            if tune.key in _OWN_KEYS:
                problems.append(f"tune.key: {tune.key} is set by the sweep; {_OWN_KEYS[tune.key]}")
            if tune.by is not None and tune.by.take == "ever":
                problems.append(f"tune.by: {tune.by.text!r} is 1 or 0; write e.g. last train/accuracy_rate")
        if problems:
            raise ValueError("\n".join(problems))
        return self


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run of a sweep: its resolved recipe, with its key as run_name and output_dir `<folder>/runs`.

    `place`: for a run that chooses a value of `tune`, the value's place there.
    """

    variant: str
    seed: int
    recipe: Recipe
    place: int | None = None

    @property
    def key(self) -> str:
        return key_of(self.variant, self.seed, self.place)

    def rows(self) -> list[dict[str, float]]:
        """Read the run's metrics, one row a step."""
        return read_metrics(RunFolder(self.path).metrics_file)

    def figures(self, wanted: Mapping[str, Figure], window: float) -> dict[str, float]:
        """Take these figures from the run's metrics, without those whose metric it never logged."""
        return values_of(self.rows(), wanted, window)

    @property
    def path(self) -> Path:
        return Path(self.recipe.output_dir) / self.key

    @property
    def done_file(self) -> Path:
        """The record of success. It does not count without the run's folder."""
        return self.path.parent.parent / "done" / f"{self.key}.json"

    @property
    def is_done(self) -> bool:
        return self.done_file.is_file() and RunFolder(self.path).recipe_file.is_file()

    @property
    def log_file(self) -> Path:
        return self.path.parent.parent / "logs" / f"{self.key}.log"


def key_of(variant: str, seed: int, place: int | None = None) -> str:
    return f"{variant}-{seed}" if place is None else f"{variant}-value{place + 1}-{seed}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep with every recipe resolved. `shared`: the overrides of all runs, as `key=value`.

    `choosing`: the runs that choose a value of `tune` for each variant. `runs`: those that count, which are not known
    before all of these are done. `chosen`: then the value of each variant, with its mean over the seeds that chose.
    """

    name: str
    folder: Path
    file: SweepFile
    recipe: str
    shared: tuple[str, ...]
    runs: tuple[SweepRun, ...]
    choosing: tuple[SweepRun, ...] = ()
    chosen: Mapping[str, tuple[Any, float]] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """How many runs there are, with those that are not known yet."""
        return len(self.choosing) + len(self.file.variants) * len(self.file.seeds)

    @property
    def known(self) -> tuple[SweepRun, ...]:
        return (*self.choosing, *self.runs)

    @property
    def baseline(self) -> str:
        return self.file.baseline or next(iter(self.file.variants))

    @property
    def figures(self) -> dict[str, Figure]:
        return self.file.figures or figures_of(self.known[0].recipe)

    @property
    def done(self) -> int:
        return sum(run.is_done for run in self.known)

    def of(self, variant: str) -> list[SweepRun]:
        """Return the variant's runs in the order of the file's seeds."""
        return [run for run in self.runs if run.variant == variant]


def load_sweep(
    name_or_path: str,
    *,
    recipe: str | None = None,
    overrides: Iterable[str] = (),
    folder: Path | None = None,
    seeds: tuple[int, ...] | None = None,
    only: tuple[str, ...] | None = None,
) -> Sweep:
    """Read a sweep's file, or a shipped sweep by name, and resolve the recipe of each run.

    Args:
        recipe: a recipe instead of the file's: a file, or the name of a shipped recipe.
        overrides: `dotted.key=value` for all runs; a variant's own values take precedence.
        folder: the sweep's folder; default runs/sweeps/<name>, or runs/sweeps/<name>-<recipe> for a given recipe.
        seeds: seeds instead of the file's.
        only: the variants to keep.
    Raises RecipeError with all problems of the file, or of the first variant whose recipe is wrong.
    """
    path = find_sweep(name_or_path)
    document = read_mapping(path)
    try:
        file = SweepFile.model_validate(document if seeds is None else document | {"seeds": seeds})
    except ValidationError as error:
        problems = describe_problems(error, str(path), model=SweepFile)
        where = f"{path}: seeds" if seeds is None else "--seeds"
        raise RecipeError([problem.replace(f"{path}: seeds", where, 1) for problem in problems]) from error
    overrides = tuple(overrides)
    _check_own_keys(path, file, overrides, _OWN_KEYS | ({file.tune.key: "leave it out"} if file.tune else {}))
    if only is not None:
        file = _keep(file, only)
    base = find_recipe(file.recipe, beside=path.parent) if recipe is None else find_recipe(recipe)
    name = path.stem if recipe is None else f"{path.stem}-{base.stem}"
    shared = (*as_overrides(file.set), *overrides)
    if recipe is not None or overrides:
        file = file.model_copy(update={"seconds": None})  # measured on other runs
    folder = folder or Path("runs") / "sweeps" / name

    def run(variant: str, seed: int, place: int | None, more: dict[str, Any]) -> SweepRun:
        own = {"seed": seed, "run_name": key_of(variant, seed, place), "output_dir": str(folder / "runs")}
        changes = file.variants[variant] | more | own
        try:
            return SweepRun(variant, seed, load_recipe(base, shared, as_overrides(changes)), place)
        except RecipeError as error:
            raise RecipeError(f"{path}: variant {variant}: {error}") from error

    # seed by seed with all variants of a seed together, so that an unfinished sweep can be compared
    tune, choosing, chosen = file.tune, tuple[SweepRun, ...](), dict[str, tuple[Any, float]]()
    if tune is not None:
        places = product(tune.seeds, enumerate(tune.values), file.variants)
        choosing = tuple(run(variant, seed, place, {tune.key: value}) for seed, (place, value), variant in places)
        if all(one.is_done for one in choosing):
            chosen = {variant: _best(tune, variant, choosing, file.window) for variant in file.variants}
    first = {variant: run(variant, file.seeds[0], None, {}).recipe for variant in file.variants}
    _check_variants(path, file, first, () if recipe is not None else tuple(file.figures))
    runs = tuple(
        run(variant, seed, None, {tune.key: chosen[variant][0]} if tune is not None else {})
        for seed, variant in product(file.seeds, file.variants)
        if tune is None or chosen
    )
    return Sweep(name, folder, file, base.stem, shared, runs, choosing, chosen)


def figures_of(recipe: Recipe) -> dict[str, Figure]:
    """Return the figures of a sweep whose file names none."""
    return default_figures(recipe.evaluation.benchmarks[0], recipe.data.mixture)


def chooses(tune: TuneFile, recipe: Recipe) -> Figure:
    """Return the figure whose best mean chooses a value."""
    tested = recipe.training.eval_every is not None
    return tune.by or figures_of(recipe)["test accuracy" if tested else "accuracy"]


def _best(tune: TuneFile, variant: str, choosing: Sequence[SweepRun], window: float) -> tuple[Any, float]:
    """Return the value with the best mean over the seeds (of equal ones the first), and that mean.

    A value loses if one of its runs never logged the figure. Raises RecipeError if that is so for all.
    """
    by, means = chooses(tune, choosing[0].recipe), dict[int, float]()
    for place in range(len(tune.values)):
        own = [run for run in choosing if (run.variant, run.place) == (variant, place)]
        found = [run.figures({"by": by}, window).get("by") for run in own]
        if None not in found:
            means[place] = fmean(value for value in found if value is not None)
    if not means:
        raise RecipeError(f"tune.by: no value has {by.metric} in all runs of {variant}; name a metric that runs log")
    sign = 1 if more_is_better("tune.by", by.metric, choosing[0].recipe) else -1
    best = max(means, key=lambda place: sign * means[place])
    return tune.values[best], means[best]


def _check_variants(path: Path, file: SweepFile, recipes: Mapping[str, Recipe], figures: Iterable[str]) -> None:
    """Raise RecipeError for variants that are the same, and for `figures` that no run will have. `recipes`: of each."""
    problems = [
        f"{path}: variants {one} and {other} are the same recipe; leave one out with --only"
        for one, other in combinations(recipes, 2)
        if not recipe_differences([recipes[one], recipes[other]])
    ]
    for name in figures:
        reasons = [not_measured(file.figures[name].metric, recipe) for recipe in recipes.values()]
        if all(reasons):
            problems.append(f"{path}: figures.{name}: {reasons[0]}")
    if file.tune is not None and not problems:
        for recipe in recipes.values():
            more_is_better(f"{path}: tune.by", chooses(file.tune, recipe).metric, recipe)
    if problems:
        raise RecipeError(problems)


def _check_own_keys(path: Path, file: SweepFile, overrides: tuple[str, ...], own: Mapping[str, str]) -> None:
    """Raise RecipeError for a key that only the sweep may set. `own`: these, with remedies."""
    written = {"--set": overridden_keys(overrides)}
    written |= {f"{path}: set": [key for key, _ in flatten(file.set)]}
    written |= {f"{path}: variant {name}": [key for key, _ in flatten(v)] for name, v in file.variants.items()}
    problems = [
        f"{where}: {key} is set by the sweep; {remedy}"
        for where, keys in written.items()
        for key, remedy in own.items()
        if key in keys
    ]
    if problems:
        raise RecipeError(problems)


def _keep(file: SweepFile, variants: tuple[str, ...]) -> SweepFile:
    unknown = [name for name in variants if name not in file.variants]
    if unknown:
        raise RecipeError(f"no variant {', '.join(unknown)}; choose from {', '.join(file.variants)}")
    kept = {name: changes for name, changes in file.variants.items() if name in variants}
    return file.model_copy(update={"variants": kept, "baseline": file.baseline if file.baseline in kept else None})


def as_overrides(changes: dict[str, Any]) -> list[str]:
    """Write changes for `--set`, as YAML, because JSON lacks some values of a YAML file, such as dates."""

    def written(value: Any) -> str:
        text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6)
        return text.removesuffix("...\n").strip()

    return [f"{key}={written(value)}" for key, value in changes.items()]
