"""A sweep's file: named sets of overrides, the recipe for them, seeds, and the figures of each run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe, describe_problems, find_recipe, load_recipe, read_mapping, shipped_sweeps
from gtpo_cli.recipe.section import Section
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tracking import find_metric

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*$")]
_OWN_KEYS = {
    "seed": "write seeds into its file, or --seeds 1,2,3",
    "run_name": "a run is named by variant and seed",
    "output_dir": "choose the sweep's folder with --out FOLDER",
}
_FIGURE = re.compile(r"(first|last|mean|min|max|trough|peak) (\S+)|ever (\S+) ([<>]) ([-+.\deE]+)")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run, from one metric over its steps. `text` is its notation in the file.

    first, last: mean over the first or last part of the steps (`SweepFile.window`); mean, min, max: over all steps;
    trough, peak: smallest and largest running mean over windows of that size; ever: 1 if a running mean is beyond
    `level` (`<` below, `>` above) at some step, else 0.
    """

    text: str
    take: str
    metric: str
    above: bool = True
    level: float = 0.0


def parse_figure(text: str) -> Figure:
    """Parse `last train/accuracy_rate` or `ever entropy/mean > 0.69`. Raises ValueError with an example."""
    match = _FIGURE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError("is not a figure; write e.g. last train/accuracy_rate, or ever entropy/mean > 0.69")
    take, metric, ever, sign, level = match.groups()
    find_metric(metric or ever)
    if take:
        return Figure(text, take, metric)
    if not math.isfinite(float(level)):
        raise ValueError(f"compares with {level}, which is too large for a number; write e.g. ever {ever} {sign} 0.69")
    return Figure(text, "ever", ever, sign == ">", float(level))


def default_figures(benchmark: str) -> dict[str, Figure]:
    """Return the figures of a file that names none. Metrics that a run does not log are left out of the table."""
    texts = {
        "accuracy": "last train/accuracy_rate",
        "test accuracy": f"last eval/{benchmark}/accuracy_rate",
        "strict format": "last train/strict_format_rate",
        "truncated": "last completions/truncated_share",
        "forgets to stop": "ever completions/truncated_share > 0.5",
        "length": "last completions/length_mean",
        "entropy": "last entropy/mean",
        "entropy peak": "peak entropy/mean",
        "passes ln 2": "ever entropy/mean > 0.6931",
        "filtered": "mean entropy/filtered_share",
        "KL": "last policy/kl",
        "starts pushed down": "mean audit/prefix_negative_share",
        "groups push starts down": "mean audit/prefix_negative_groups",
        "ends pushed down": "mean audit/eos_negative_share",
        "groups push ends down": "mean audit/eos_negative_groups",
    }
    return {name: parse_figure(text) for name, text in texts.items()}


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
    seconds: float | None = Field(None, gt=0, description="measured time of one run of the file's own recipe")

    @model_validator(mode="after")
    def _check(self) -> SweepFile:
        problems = []
        if self.baseline is not None and self.baseline not in self.variants:
            problems.append(f"baseline: {self.baseline} is not a variant; choose from {', '.join(self.variants)}")
        if len(set(self.seeds)) < len(self.seeds):
            problems.append("seeds: a seed is named twice, which would be the same run again")
        if problems:
            raise ValueError("\n".join(problems))
        return self


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run of a sweep: its resolved recipe, with run_name `<variant>-<seed>` and output_dir `<folder>/runs`."""

    variant: str
    seed: int
    recipe: Recipe

    @property
    def key(self) -> str:
        return f"{self.variant}-{self.seed}"

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


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep with every recipe resolved. `shared`: the overrides of all runs, as `key=value`."""

    name: str
    folder: Path
    file: SweepFile
    recipe: str
    shared: tuple[str, ...]
    runs: tuple[SweepRun, ...]

    @property
    def baseline(self) -> str:
        return self.file.baseline or next(iter(self.file.variants))

    @property
    def figures(self) -> dict[str, Figure]:
        return self.file.figures or default_figures(self.runs[0].recipe.evaluation.benchmarks[0])

    @property
    def done(self) -> int:
        return sum(run.is_done for run in self.runs)

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
    _check_own_keys(path, file, overrides)
    if only is not None:
        file = _keep(file, only)
    siblings = [path.parent / name for name in (file.recipe, f"{file.recipe}.yaml")] if recipe is None else []
    base = next((found for found in siblings if found.is_file()), None) or find_recipe(recipe or file.recipe)
    name = path.stem if recipe is None else f"{path.stem}-{base.stem}"
    shared = (*as_overrides(file.set), *overrides)
    if recipe is not None or overrides:
        file = file.model_copy(update={"seconds": None})  # measured on other runs
    folder = folder or Path("runs") / "sweeps" / name
    return Sweep(name, folder, file, base.stem, shared, tuple(_runs(file, path, base, shared, folder)))


def _check_own_keys(path: Path, file: SweepFile, overrides: tuple[str, ...]) -> None:
    """Raise RecipeError for a key that only the sweep may set."""
    written = {"--set": [override.partition("=")[0].strip() for override in overrides], f"{path}: set": list(file.set)}
    written |= {f"{path}: variant {name}": list(changes) for name, changes in file.variants.items()}
    problems = [
        f"{where}: {key} is set by the sweep; {remedy}"
        for where, keys in written.items()
        for key, remedy in _OWN_KEYS.items()
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


def _runs(file: SweepFile, path: Path, base: Path, shared: tuple[str, ...], folder: Path) -> Iterator[SweepRun]:
    """Yield runs seed by seed with all variants of a seed together, so that an unfinished sweep can be compared."""
    for seed in file.seeds:
        for variant, changes in file.variants.items():
            own = {"seed": seed, "run_name": f"{variant}-{seed}", "output_dir": str(folder / "runs")}
            try:
                yield SweepRun(variant, seed, load_recipe(base, [*shared, *as_overrides(changes | own)]))
            except RecipeError as error:
                raise RecipeError(f"{path}: variant {variant}: {error}") from error


def as_overrides(changes: dict[str, Any]) -> list[str]:
    """Write changes for `--set`, as YAML, because JSON lacks some values of a YAML file, such as dates."""

    def written(value: Any) -> str:
        text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6)
        return text.removesuffix("...\n").strip()

    return [f"{key}={written(value)}" for key, value in changes.items()]


def find_sweep(name_or_path: str) -> Path:
    """Find a file, with or without `.yaml`, or a shipped sweep. Raises RecipeError."""
    for candidate in (Path(name_or_path), Path(name_or_path + ".yaml")):
        if candidate.is_file():
            return candidate
    shipped = shipped_sweeps()
    name = name_or_path.removesuffix(".yaml")
    if name in shipped:
        return shipped[name]
    raise RecipeError(f"{name_or_path}: no such file and no shipped sweep; choose from {', '.join(shipped)}")
