"""A sweep's file: a recipe, named variants of it, seeds, and the figures that are taken of each run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import Field, StringConstraints, ValidationError, model_validator

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe, find_recipe, load_recipe, read_mapping
from gtpo_cli.recipe.section import Section
from gtpo_cli.tracking import find_metric

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.+-]*$")]
Take = Literal["first", "last", "mean", "min", "max", "trough", "peak", "ever"]
_FIGURE = re.compile(r"(first|last|mean|min|max|trough|peak) (\S+)|ever (\S+) ([<>]) (\S+)")

DEFAULT_FIGURES = {
    "accuracy": "last train/accuracy_rate",
    "strict format": "last train/strict_format_rate",
    "truncated": "last completions/truncated_share",
    "length": "last completions/length_mean",
    "entropy": "last entropy/mean",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run, from one metric over its steps.

    first, last: mean over the first or last part of the steps (`SweepFile.window`); mean, min, max: over all steps;
    trough, peak: smallest and largest running mean over that part; ever: 1 where the running mean is at some step
    beyond `level` (`<` below, `>` above), else 0.
    """

    name: str
    take: Take
    metric: str
    above: bool = True
    level: float = 0.0


class SweepFile(Section):
    """The keys of a sweep's file."""

    recipe: str = Field(description="the recipe that all runs share: a file, or the name of a shipped one")
    about: str = Field("", description="one line: the question")
    set: dict[str, Any] = Field(default_factory=dict, description="overrides for all runs, by dotted key")
    variants: dict[Name, dict[str, Any]] = Field(description="overrides of each variant", min_length=1)
    baseline: str | None = Field(None, description="the variant that others are compared with; default: the first")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (1, 2, 3, 4, 5), min_length=1, description="seed of each run"
    )
    figures: dict[str, str] = Field(
        default_factory=lambda: dict(DEFAULT_FIGURES), description='e.g. {accuracy: "last train/accuracy_rate"}'
    )
    window: float = Field(0.05, gt=0.0, le=1.0, description="part of the steps that first, last and running means use")
    seconds: float | None = Field(None, gt=0, description="what one run took when it was measured; for the time left")

    @model_validator(mode="after")
    def _check(self) -> SweepFile:
        problems = []
        if self.baseline is not None and self.baseline not in self.variants:
            problems.append(f"baseline: {self.baseline} is no variant; there are {', '.join(self.variants)}")
        if len(set(self.seeds)) < len(self.seeds):
            problems.append("seeds: a seed is named twice, which would be the same run")
        for name, text in self.figures.items():
            try:
                parse_figure(name, text)
            except ValueError as error:
                problems.append(f"figures.{name}: {error}")
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


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep with every recipe resolved."""

    name: str
    folder: Path
    file: SweepFile
    runs: tuple[SweepRun, ...]

    @property
    def baseline(self) -> str:
        return self.file.baseline or next(iter(self.file.variants))

    @property
    def figures(self) -> list[Figure]:
        return [parse_figure(name, text) for name, text in self.file.figures.items()]

    def of(self, variant: str) -> list[SweepRun]:
        """The variant's runs, by seed as in the file."""
        return [run for run in self.runs if run.variant == variant]


def load_sweep(
    name_or_path: str,
    *,
    folder: Path | None = None,
    seeds: tuple[int, ...] | None = None,
    variants: tuple[str, ...] | None = None,
) -> Sweep:
    """Read a sweep's file, or a shipped sweep by name, and resolve the recipe of each run.

    Args:
        folder: where the sweep lives; default runs/sweeps/<name>.
        seeds: instead of the file's.
        variants: only these of the file's.
    Raises RecipeError with all problems of the file, or of the first variant whose recipe is wrong.
    """
    path = find_sweep(name_or_path)
    document = read_mapping(path)
    try:
        file = SweepFile.model_validate(document)
        if seeds is not None:
            file = SweepFile.model_validate(file.model_dump() | {"seeds": seeds})
        if variants is not None:
            file = _only(file, variants)
    except ValidationError as error:
        raise RecipeError([f"{path}: {line}" for line in _problems(error)]) from error
    beside = path.parent / file.recipe
    recipe = str(beside) if beside.is_file() else file.recipe
    sweep_folder = folder or Path("runs") / "sweeps" / path.stem
    runs = tuple(_runs(file, path, recipe, sweep_folder))
    return Sweep(path.stem, sweep_folder, file, runs)


def _only(file: SweepFile, variants: tuple[str, ...]) -> SweepFile:
    unknown = [name for name in variants if name not in file.variants]
    if unknown:
        raise RecipeError(f"no variant {', '.join(unknown)}; there are {', '.join(file.variants)}")
    kept = {name: changes for name, changes in file.variants.items() if name in variants}
    baseline = file.baseline if file.baseline in kept else None
    return SweepFile.model_validate(file.model_dump() | {"variants": kept, "baseline": baseline})


def _runs(file: SweepFile, path: Path, recipe: str, folder: Path) -> Iterator[SweepRun]:
    """Seed by seed, all variants of one seed together: an unfinished sweep can already be compared."""
    for seed in file.seeds:
        for variant, changes in file.variants.items():
            own = {"seed": seed, "run_name": f"{variant}-{seed}", "output_dir": str(folder / "runs")}
            try:
                yield SweepRun(variant, seed, load_recipe(recipe, _overrides(file.set | changes | own)))
            except RecipeError as error:
                raise RecipeError(f"{path}: variant {variant}: {error}") from error


def _overrides(changes: dict[str, Any]) -> list[str]:
    """As `--set` takes them: as YAML, which has a form for all that a YAML file holds (JSON has none for a date)."""
    return [f"{key}={_yaml(value)}" for key, value in changes.items()]


def _yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.removesuffix("...\n").strip()


def parse_figure(name: str, text: str) -> Figure:
    """`last train/accuracy_rate`, `ever entropy/mean > 0.69`. Raises ValueError that says what would do."""
    match = _FIGURE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no figure; write e.g. last train/accuracy_rate, or ever entropy/mean > 0.69")
    take, metric, ever, sign, level = match.groups()
    find_metric(metric or ever)
    if take is not None:
        return Figure(name, cast("Take", take), metric)
    try:
        return Figure(name, "ever", ever, sign == ">", float(level))
    except ValueError as error:
        raise ValueError(f"{level!r} is no number") from error


def find_sweep(name_or_path: str) -> Path:
    """A file as given, or with `.yaml` added, or a shipped sweep of that name. Raises RecipeError."""
    for candidate in (Path(name_or_path), Path(name_or_path + ".yaml")):
        if candidate.is_file():
            return candidate
    shipped = shipped_sweeps()
    name = name_or_path.removesuffix(".yaml")
    if name in shipped:
        return shipped[name]
    raise RecipeError(f"{name_or_path}: no such file and no shipped sweep; there are {', '.join(shipped)}")


def shipped_sweeps() -> dict[str, Path]:
    """Name -> file of the sweeps that come with gtpo."""
    recipes = find_recipe("tiny_arithmetic").parent
    return {path.stem: path for path in sorted((recipes / "sweeps").glob("*.yaml"))}


def _problems(error: ValidationError) -> Iterator[str]:
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "value_error" and not key:
            yield from str(item["ctx"]["error"]).splitlines()
        elif item["type"] == "extra_forbidden":
            yield f"{key}: unknown key; known: {', '.join(SweepFile.model_fields)}"
        else:
            yield f"{key}: {item['msg'][0].lower()}{item['msg'][1:]}"
