"""What a sweep found: each run's figures, each variant's mean over seeds, and its difference to the baseline."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gtpo_cli.errors import EvaluationError
from gtpo_cli.estimators import Interval, bootstrap_means, paired_bootstrap_means, sign_flip_test
from gtpo_cli.report.charts import running_mean
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.sweeps.execute import is_done
from gtpo_cli.sweeps.spec import Figure, Sweep, SweepRun
from gtpo_cli.tracking import read_metrics

Row = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of a variant: mean over its finished seeds, and the paired difference to the baseline (same seeds).

    `difference` and `p_value` are None for the baseline itself, and where no seed is shared.
    """

    variant: str
    figure: str
    seeds: int
    mean: Interval
    difference: Interval | None
    p_value: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """`values[run key][figure name]`; a figure whose metric the run never logged is missing."""

    figures: tuple[str, ...]
    values: dict[str, dict[str, float]]
    cells: tuple[Cell, ...]


def summarise(sweep: Sweep) -> Summary:
    """Of the runs that are done. Raises EvaluationError when there is none."""
    done = [run for run in sweep.runs if is_done(sweep, run)]
    if not done:
        raise EvaluationError(f"{sweep.folder}: no run of the sweep is done yet")
    values = {run.key: values_of(rows_of(run), sweep.figures, sweep.file.window) for run in done}
    cells = [
        cell
        for figure in sweep.figures
        for variant in sweep.file.variants
        if (cell := _cell(sweep, values, variant, figure.name)) is not None
    ]
    return Summary(tuple(figure.name for figure in sweep.figures), values, tuple(cells))


def rows_of(run: SweepRun) -> list[dict[str, float]]:
    """The run's metrics, a mapping a step."""
    return read_metrics(RunFolder(run.path).metrics_file)


def values_of(rows: Sequence[Row], figures: Sequence[Figure], window: float) -> dict[str, float]:
    """Each figure of one run, by name; without those whose metric it never logged."""
    found = {}
    for figure in figures:
        column = np.array([row[figure.metric] for row in rows if figure.metric in row], dtype=np.float64)
        if len(column):
            found[figure.name] = _take(figure, column, max(1, round(window * len(column))))
    return found


def _take(figure: Figure, column: NDArray[np.float64], size: int) -> float:
    if figure.take == "first":
        return float(column[:size].mean())
    if figure.take == "last":
        return float(column[-size:].mean())
    if figure.take in ("mean", "min", "max"):
        return float(getattr(column, figure.take)())
    smooth = running_mean(column, size)[size - 1 :]  # whole windows only
    if figure.take == "trough":
        return float(smooth.min())
    if figure.take == "peak":
        return float(smooth.max())
    return float((smooth > figure.level).any() if figure.above else (smooth < figure.level).any())


def _cell(sweep: Sweep, values: Mapping[str, Mapping[str, float]], variant: str, figure: str) -> Cell | None:
    own = _by_seed(sweep, values, variant, figure)
    if not own:
        return None
    (mean,) = bootstrap_means([[value] for value in own.values()])
    base = _by_seed(sweep, values, sweep.baseline, figure)
    shared = [seed for seed in own if seed in base]
    if variant == sweep.baseline or not shared:
        return Cell(variant, figure, len(own), mean, None, None)
    before, after = [[base[seed]] for seed in shared], [[own[seed]] for seed in shared]
    (difference,) = paired_bootstrap_means(before, after)
    p_value = sign_flip_test([own[seed] - base[seed] for seed in shared])
    return Cell(variant, figure, len(own), mean, difference, p_value)


def _by_seed(sweep: Sweep, values: Mapping[str, Mapping[str, float]], variant: str, figure: str) -> dict[int, float]:
    """{seed: value} of the variant's finished runs that have the figure."""
    runs = ((run.seed, values.get(run.key, {})) for run in sweep.of(variant))
    return {seed: found[figure] for seed, found in runs if figure in found}


# -- ways out ---------------------------------------------------------------------------------------------------------


def markdown(summary: Summary) -> str:
    """A row for each variant and figure."""
    lines = ["| figure | variant | seeds | mean (95 % interval) | difference (95 % interval) | p |", "|---" * 6 + "|"]
    for cell in summary.cells:
        difference = "" if cell.difference is None else shown(cell.difference, signed=True)
        p_value = "" if cell.p_value is None else f"{cell.p_value:.3f}"
        lines.append(
            f"| {cell.figure} | {cell.variant} | {cell.seeds} | {shown(cell.mean)} | {difference} | {p_value} |"
        )
    return "\n".join(lines) + "\n"


def shown(interval: Interval, *, signed: bool = False) -> str:
    """`0.934 (0.931 to 0.938)`, with as many digits as the size of the numbers asks."""
    largest = max(abs(value) for value in interval)
    digits = 3 if largest < 10 else 1
    plus = "+" if signed else ""
    estimate, low, high = (f"{value:{plus}.{digits}f}" for value in interval)
    return f"{estimate} ({low} to {high})"


def runs_csv(sweep: Sweep, summary: Summary) -> str:
    """A row for each finished run: the raw numbers behind everything else."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["variant", "seed", *summary.figures])
    for run in sweep.runs:
        if run.key in summary.values:
            found = summary.values[run.key]
            numbers = (f"{found[figure]:.6g}" if figure in found else "" for figure in summary.figures)
            writer.writerow([run.variant, run.seed, *numbers])
    return out.getvalue()


def as_json(sweep: Sweep, summary: Summary) -> str:
    """Everything, for programs."""
    document: dict[str, Any] = {
        "sweep": sweep.name,
        "baseline": sweep.baseline,
        "figures": sweep.file.figures,
        "runs": summary.values,
        "table": [asdict(cell) for cell in summary.cells],
    }
    return json.dumps(document, indent=2) + "\n"
