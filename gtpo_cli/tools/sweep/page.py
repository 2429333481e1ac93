"""Write a sweep's results: tables, charts of the variants' curves as mean and band, and one page with all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gtpo_cli.errors import EvaluationError
from gtpo_cli.pages import filled
from gtpo_cli.pages.figures import Chart, Series, write_charts
from gtpo_cli.pages.run_charts import Curve, curves_of, in_unit, on_page, running_mean, steps_chart, style, window
from gtpo_cli.runs.files import write_aside, writing
from gtpo_cli.tools.sweep.estimates import Estimates, as_json, markdown, runs_csv, shown, stopped_words
from gtpo_cli.tools.sweep.execute import end_of
from gtpo_cli.tools.sweep.figures import Metrics
from gtpo_cli.tools.sweep.spec import Sweep, as_overrides, chooses

if TYPE_CHECKING:
    from pathlib import Path

_POINTS = 300  # maximum per curve

VariantRows = Mapping[str, Sequence[Sequence[Metrics]]]  # variant -> metrics of its finished runs


def write_results(sweep: Sweep, estimates: Estimates) -> Path:
    """Write table.md, runs.csv, results.json, charts/ and report.html to the sweep's folder. Return the page's path."""
    rows = {variant: [run.rows() for run in sweep.of(variant) if run.is_done] for variant in sweep.file.variants}
    charts = band_charts({variant: found for variant, found in rows.items() if found})
    page = sweep.folder / "report.html"
    files = {
        sweep.folder / "table.md": markdown(estimates),
        sweep.folder / "runs.csv": runs_csv(sweep, estimates),
        sweep.folder / "results.json": as_json(sweep, estimates),
        page: _render(sweep, estimates, charts),
    }
    with writing(lambda why: EvaluationError(f"{sweep.folder}: the results cannot be written ({why})")):
        write_charts(charts, sweep.folder / "charts")
        for file, text in files.items():
            write_aside(file, text)
    return page


def band_charts(variants: VariantRows) -> list[Chart]:
    """Return a chart for each logged metric: the variants' means over seeds, and the range between their seeds.

    The loss has no chart, because the value of a policy-gradient loss means nothing.
    """
    logged = {metric for runs in variants.values() for rows in runs for row in rows for metric in row}
    return [
        _band_chart(curve, variants) for curve in curves_of(logged) if curve.name != "loss" and curve.metric in logged
    ]


def _band_chart(curve: Curve, variants: VariantRows) -> Chart:
    size = window(max(len(rows) for runs in variants.values() for rows in runs))
    how = "Line: mean over seeds; band: from the lowest to the highest seed"
    how += f"; both of the mean of the last {size} steps." if size > 1 else "."
    series = []
    for index, (variant, runs) in enumerate(variants.items()):
        steps, values = _stacked(curve.metric, runs, size)
        values = in_unit(curve, values)
        if len(steps):
            edges = (values.mean(axis=0), values.min(axis=0), values.max(axis=0))
            mean, low, high = (edge.filled(np.nan) for edge in edges)
            series.append(Series(variant, *style(index), steps, mean, band=(low, high)))
    return steps_chart(curve, "mean", how, series)


def _stacked(metric: str, runs: Sequence[Sequence[Metrics]], size: int) -> tuple[NDArray[np.float64], Any]:
    """Return (steps, smoothed values of each run). Missing values are masked, runs without the metric are left out, and
    longer runs are cut."""
    runs = [rows for rows in runs if any(metric in row for row in rows)]
    if not runs:
        return np.zeros(0), np.zeros((0, 0))
    length = min(map(len, runs))
    steps = np.array([row["step"] for row in runs[0][:length]], dtype=np.float64)
    columns = [np.array([row.get(metric, np.nan) for row in rows[:length]], dtype=np.float64) for rows in runs]
    chosen = np.unique(np.linspace(0, length - 1, min(length, _POINTS)).round().astype(int))
    smoothed = np.stack([running_mean(column, size)[chosen] for column in columns])
    return steps[chosen], np.ma.masked_invalid(smoothed)


def _render(sweep: Sweep, estimates: Estimates, charts: Sequence[Chart]) -> str:
    """Render the page, which needs no network."""
    return filled(
        "gtpo_cli.tools.sweep",
        "sweep.html.j2",
        sweep=sweep,
        cells=estimates.cells,
        colours=[style(index)[0] for index in range(len(sweep.file.variants))],
        minutes=sum(end_of(run).seconds for run in sweep.known if run.is_done) / 60,
        **on_page(charts),
        shown=shown,
        stopped=stopped_words(estimates),
        by=chooses(sweep.file.tune, sweep.choosing[0].recipe).text if sweep.file.tune else "",
        overrides=lambda changes: ", ".join(as_overrides(changes)),
    )
