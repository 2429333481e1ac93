"""The results of a sweep: each run's figures, each variant's mean over seeds, and its difference to the baseline."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic_core import to_json

from gtpo_cli.errors import EvaluationError
from gtpo_cli.estimators import Interval, difference_interval, holm, mean_interval, sign_flip_test
from gtpo_cli.text import markdown_table
from gtpo_cli.tools.sweep.execute import end_of
from gtpo_cli.tools.sweep.figures import Metrics
from gtpo_cli.tools.sweep.spec import Sweep


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of a variant: its mean over finished seeds, and the difference to the baseline over the `paired` seeds,
    which both have.

    `difference` and the p-values are None for the baseline, and without such seeds. `corrected`: the p-value after
    Holm's correction for the variants that the figure compares.
    """

    variant: str
    figure: str
    seeds: int
    mean: Interval
    difference: Interval | None
    p_value: float | None
    paired: int = 0
    corrected: float | None = None

    @property
    def over(self) -> str:
        """The number of seeds, and of those in the difference if they are fewer."""
        return f"{self.seeds} ({self.paired} paired)" if 0 < self.paired < self.seeds else str(self.seeds)


@dataclass(frozen=True, slots=True)
class Estimates:
    """The results of a sweep. `values[run key][figure name]` lacks figures whose metric the run never logged.

    `stopped`: the keys of finished runs, those that choose a value too, that stopped themselves before their last step.
    """

    baseline: str
    values: dict[str, dict[str, float]]
    cells: tuple[Cell, ...]
    stopped: tuple[str, ...]


def estimate(sweep: Sweep) -> Estimates:
    """Estimate all figures from the finished runs. Raises EvaluationError if there are none."""
    done = [run for run in sweep.runs if run.is_done]
    if not done:
        raise EvaluationError(f"{sweep.folder}: no run of the sweep is finished yet")
    stopped = tuple(run.key for run in sweep.known if run.is_done and end_of(run).stopped)
    values = {run.key: run.figures(sweep.figures, sweep.file.window) for run in done}
    cells: list[Cell] = []
    for figure in sweep.figures:
        own = [_cell(sweep, values, variant, figure) for variant in sweep.file.variants]
        cells += _corrected([cell for cell in own if cell is not None])
    return Estimates(sweep.baseline, values, tuple(cells), stopped)


def _corrected(cells: Sequence[Cell]) -> list[Cell]:
    p_values = {cell.variant: cell.p_value for cell in cells if cell.p_value is not None}
    corrected = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    return [replace(cell, corrected=corrected.get(cell.variant)) for cell in cells]


def _cell(sweep: Sweep, values: Mapping[str, Metrics], variant: str, figure: str) -> Cell | None:
    def by_seed(variant: str) -> dict[int, float]:
        runs = (run for run in sweep.of(variant) if figure in values.get(run.key, {}))
        return {run.seed: values[run.key][figure] for run in runs}

    own, base = by_seed(variant), by_seed(sweep.baseline)
    if not own:
        return None
    mean = mean_interval(list(own.values()))
    shared = [seed for seed in own if seed in base]
    if variant == sweep.baseline or not shared:
        return Cell(variant, figure, len(own), mean, None, None)
    difference = difference_interval([base[seed] for seed in shared], [own[seed] for seed in shared])
    p_value = sign_flip_test([own[seed] - base[seed] for seed in shared])
    return Cell(variant, figure, len(own), mean, difference, p_value, len(shared))


# -- output -----------------------------------------------------------------------------------------------------------


def columns(estimates: Estimates) -> tuple[str, ...]:
    difference = f"difference to {estimates.baseline} (95 % interval)"
    return ("figure", "variant", "seeds", "mean (95 % interval)", difference, "p", "p corrected")


def table_rows(estimates: Estimates) -> list[tuple[str, ...]]:
    """Return a row for each variant and figure."""
    rows: list[tuple[str, ...]] = []
    for cell in estimates.cells:
        difference = "" if cell.difference is None else shown(cell.difference, signed=True)
        p_values = ("" if p is None else f"{p:.3f}" for p in (cell.p_value, cell.corrected))
        rows.append((cell.figure, cell.variant, cell.over, shown(cell.mean), difference, *p_values))
    return rows


def markdown(estimates: Estimates) -> str:
    """Return the table, and below it the runs that stopped themselves."""
    stopped = stopped_words(estimates)
    return markdown_table(columns(estimates), table_rows(estimates)) + (f"\n{stopped}\n" if stopped else "")


def stopped_words(estimates: Estimates) -> str:
    """Name the runs that stopped themselves; empty if there are none."""
    if not estimates.stopped:
        return ""
    return (
        f"Stopped before the last step, by the guard or for want of a finite gradient: {', '.join(estimates.stopped)}"
    )


def shown(interval: Interval, *, signed: bool = False) -> str:
    """Format an interval, such as `0.934 (0.931 to 0.938)`; an open one is the estimate alone. Large numbers have fewer
    digits."""
    known = interval if interval.is_bounded else interval[:1]
    digits = 3 if max(map(abs, known)) < 10 else 1
    estimate, *ends = (f"{value:{'+' if signed else ''}z.{digits}f}" for value in known)
    return f"{estimate} ({' to '.join(ends)})" if ends else estimate


def runs_csv(sweep: Sweep, estimates: Estimates) -> str:
    """Write a row with the raw numbers of each finished run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["variant", "seed", *sweep.figures])
    for run in sweep.runs:
        if (found := estimates.values.get(run.key)) is not None:
            numbers = (f"{found[figure]:.6g}" if figure in found else "" for figure in sweep.figures)
            writer.writerow([run.variant, run.seed, *numbers])
    return out.getvalue()


def as_json(sweep: Sweep, estimates: Estimates) -> str:
    """Write all results for programs. Numbers that are not finite become null."""
    document = {
        "sweep": sweep.name,
        "baseline": sweep.baseline,
        "chosen": {variant: value for variant, (value, _) in sweep.chosen.items()},
        "figures": {name: figure.text for name, figure in sweep.figures.items()},
        "runs": estimates.values,
        "table": estimates.cells,
        "stopped": estimates.stopped,
    }
    return to_json(document, indent=2, inf_nan_mode="null").decode() + "\n"
