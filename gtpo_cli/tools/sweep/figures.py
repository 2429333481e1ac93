"""Figures of a run: one number each, from a metric over the run's steps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gtpo_cli.tracking import find_metric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Metrics = Mapping[str, float]
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
    try:
        known = math.isfinite(float(level))
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"compares with {level}, which is no finite number; write e.g. ever {ever} {sign} 0.69")
    return Figure(text, "ever", ever, sign == ">", float(level))


def default_figures(benchmark: str, parts: Iterable[str] = ()) -> dict[str, Figure]:
    """Return the figures of a file that names none. Metrics that a run does not log are left out of the table.

    `parts`: of a mixture.
    """
    texts = {
        "accuracy": "last train/accuracy_rate",
        "test accuracy": f"last eval/{benchmark}/accuracy_rate",
        **{f"test accuracy, {part}": f"last eval/{part}/accuracy_rate" for part in parts},
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


def values_of(rows: Sequence[Metrics], figures: Mapping[str, Figure], window: float) -> dict[str, float]:
    """Return the figures of one run by name, without those whose metric it never logged.

    Steps without a finite value of a metric do not count for it.
    """
    import numpy as np

    found = {}
    for name, figure in figures.items():
        column = np.array([row.get(figure.metric, math.nan) for row in rows], dtype=np.float64)
        column = column[np.isfinite(column)]
        if len(column):
            found[name] = _take(figure, column, max(1, round(window * len(column))))
    return found


def _take(figure: Figure, column: NDArray[np.float64], size: int) -> float:
    from gtpo_cli.pages.run_charts import running_mean

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
