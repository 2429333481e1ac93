"""The charts of a report: curves over training steps, and pass@k and maj@k over k; as images and as live charts.

Every run has the same colour and line style on all charts. The colours follow Okabe & Ito's palette, which colour-blind
readers can tell apart on white and on black.

Live charts: the page contains their data and one script, and uPlot draws them. Without scripts the page names the
chart's SVG file. `vendor/` has the published uPlot with its licence.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gtpo_cli.entropy_filter import LN_2
from gtpo_cli.pages.figures import DASHES, Chart, Points, Series, Values
from gtpo_cli.pages.run_record import Evaluated, RunRecord, evaluated
from gtpo_cli.text import file_name, one_line
from gtpo_cli.tracking import find_metric, reward_words

if TYPE_CHECKING:
    from markupsafe import Markup


COLOURS = ("#1A80BB", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":")
_BASE_COLOUR = "#888888"
_WINDOWS = 40  # the running mean's window is this fraction (1/40) of the run


@dataclass(frozen=True, slots=True)
class Curve:
    """A chart of one metric over steps. `share`: its axis is in percent. `line`: a reference level and its name.
    `unit`: another one than the metric's, and how many of the metric's make it up."""

    name: str
    title: str
    metric: str
    share: bool = False
    line: tuple[float, str] | None = None
    held_out: str | None = None  # suffix of the metrics of evaluations during training, drawn as points
    unit: tuple[str, float] | None = None


CURVES = (  # a report begins with the first two that a run has
    Curve("reward", "Reward", "train/reward_mean"),
    Curve("accuracy", "Accuracy", "train/accuracy_rate", share=True, held_out="accuracy_rate"),
    Curve("resting", "Prompts that rest", "tasks/resting"),
    Curve("loss", "Loss", "optim/loss"),
    Curve("strict_format", "Strict format", "train/strict_format_rate", share=True, held_out="strict_format_rate"),
    Curve("format", "Format, in the reward's mode", "train/format_rate", share=True),
    Curve("entropy", "Entropy", "entropy/mean", line=(LN_2, "ln 2")),
    Curve("filtered", "Filtered completions", "entropy/filtered_share", share=True),
    Curve("conflict", "Conflict tokens", "conflict/share", share=True),
    Curve("kl", "KL to the untrained policy", "policy/kl"),
    Curve("length", "Completion length", "completions/length_mean"),
    Curve("truncated", "Truncated completions", "completions/truncated_share", share=True),
    Curve("prefix_down", "Gradient on shared starts, down", "audit/prefix_negative_share", share=True),
    Curve("prefix_up", "Gradient on shared starts, up", "audit/prefix_positive_share", share=True),
    Curve("eos_down", "Gradient on end tokens, down", "audit/eos_negative_share", share=True),
    Curve("eos_up", "Gradient on end tokens, up", "audit/eos_positive_share", share=True),
    Curve("prefix_groups", "Groups that push shared starts down", "audit/prefix_negative_groups", share=True),
    Curve("eos_groups", "Groups that push end tokens down", "audit/eos_negative_groups", share=True),
    Curve("gradient", "Gradient norm", "optim/grad_norm"),
    Curve("learning_rate", "Learning rate", "optim/learning_rate"),
    Curve("time", "Time of a step", "time/step"),
    Curve("speed", "Tokens a second", "speed/tokens_per_second"),
    Curve("memory", "Peak memory", "memory/peak_bytes", unit=("GiB", 2**30)),
)
_REWARD = re.compile(r"rewards/(.+)_mean")
_TASK = re.compile(r"tasks/(.+)/(accuracy_rate|level)")


def curves_of(names: Iterable[str]) -> list[Curve]:
    """Return the curves of the metrics that were logged: the declared ones, the rewards that users added, and the tasks
    of a curriculum."""
    logged = sorted(set(names))
    rewards = [
        Curve(f"reward_{file_name(match[1])}", reward_words(match[1]), name)
        for name in logged
        if (match := _REWARD.fullmatch(name))
    ]
    tasks = [
        Curve(file_name(name), f"{match[1]}: {match[2].replace('_rate', '')}", name, share=match[2] != "level")
        for name in logged
        if (match := _TASK.fullmatch(name))
    ]
    return [*CURVES[:2], *rewards, *tasks, *CURVES[2:]]


def training_charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """Return a chart for each metric of at least one run; `format` only if it differs from strict format."""
    charts = []
    for curve in curves_of(name for run in runs for row in run.rows for name in row):
        # The value of a policy-gradient loss means nothing; only SFT's loss does.
        shown = [None if curve.name == "loss" and run.method != "SFT" else run for run in runs]
        if _worth_drawing(curve, [run for run in shown if run is not None]):
            charts.append(_training_chart(curve, shown))
    return charts


def evaluation_charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """Return charts of pass@k and maj@k over k for each benchmark with more than one k."""
    charts = []
    for benchmark, shown in evaluated(runs).items():
        for family, title in (("pass", "pass@k"), ("maj", "maj@k")):
            if any(len(one.evaluation.results.ks(family)) > 1 for one in shown):
                charts.append(_k_chart(benchmark, family, title, shown))
    return charts


def style(index: int) -> tuple[str, str]:
    """Return the colour and line style of the run at this place. The first 24 differ."""
    return COLOURS[index % len(COLOURS)], STYLES[(index + index // 12) % len(STYLES)]


def window(steps: int) -> int:
    """Return the number of steps in the running mean."""
    return max(1, steps // _WINDOWS)


def running_mean(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the mean of the last `size` values at each place (fewer at the start), without non-finite values."""
    if not len(values):
        return values
    finite, ones = np.isfinite(values), np.ones(size)
    # Differences of cumulative sums would lose small values after a large one.
    sums = np.convolve(np.where(finite, values, 0.0), ones)[: len(values)]
    counts = np.convolve(finite, ones)[: len(values)]
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, sums / counts, np.nan)


# -- single charts ----------------------------------------------------------------------------------------------------


def _worth_drawing(curve: Curve, runs: Sequence[RunRecord]) -> bool:
    rows = [row for run in runs for row in run.rows]
    if curve.name == "format":
        return any(row.get("train/format_rate") != row.get("train/strict_format_rate") for row in rows)
    return any(curve.metric in row for row in rows)


def steps_chart(curve: Curve, value: str, how: str, series: Sequence[Series]) -> Chart:
    """Return the chart of a curve over steps. `value` names the lines, and `how` explains them in the caption."""
    metric = find_metric(curve.metric)
    unit = curve.unit[0] if curve.unit else "" if metric.unit == "1" else metric.unit
    return Chart(
        name=curve.name,
        title=curve.title,
        caption=f"{curve.metric}: {metric.formula}. {how}",
        x_name="step",
        value=value,
        unit=None if curve.share else unit,
        series=tuple(series),
        level=curve.line,
    )


def in_unit(curve: Curve, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values of the curve's metric in the unit of its chart."""
    return values / curve.unit[1] if curve.unit else values


def _training_chart(curve: Curve, runs: Sequence[RunRecord | None]) -> Chart:
    """Return the chart of a curve. Runs keep their place and colour; None is not drawn."""
    drawn = [(style(index), run) for index, run in enumerate(runs) if run is not None]
    size = window(max(len(run.rows) for _, run in drawn))
    how = f"Faint: every step; line: mean of the last {size} steps." if size > 1 else "Every step."
    if any(_held_out(curve, run) for _, run in drawn):
        how += " Points: test problems, evaluated during training."
    series = []
    for (colour, line), run in drawn:
        steps, values = _column(run, curve.metric)
        values = in_unit(curve, values)
        points = tuple(Points(_benchmark(name), *_column(run, name)) for name in _held_out(curve, run))
        if len(steps) or points:  # SFT has test points and no curve
            mean, faint = (running_mean(values, size), values) if size > 1 else (values, None)
            series.append(Series(run.name, colour, line, steps, mean, faint, points=points))
    return steps_chart(curve, "mean" if size > 1 else "value", how, series)


def _held_out(curve: Curve, run: RunRecord) -> list[str]:
    """List the metrics of evaluations during training that belong on a curve's chart."""
    names = {name for row in run.rows for name in row if name.startswith("eval/")}
    return sorted(name for name in names if curve.held_out and name.endswith(f"/{curve.held_out}"))


def _benchmark(metric: str) -> str:
    """Return the label of a metric: eval/gsm8k/accuracy_rate -> gsm8k test."""
    return f"{metric.removeprefix('eval/').rpartition('/')[0]} test"


def _k_chart(benchmark: str, family: str, title: str, shown: Sequence[Evaluated]) -> Chart:
    caption = "Mean over problems; band: 95 % interval over problems."
    if family == "pass":
        caption = "Line: unbiased pass@k; rings: the first k completions. " + caption
    places = [one.place for one in shown]
    series = []
    for index, one in enumerate(shown):
        ks, scores = one.evaluation.results.ks(family), one.evaluation.results.scores
        if not ks:
            continue
        if one.place is None:
            label, colour, line = f"{one.name} (base)", _BASE_COLOUR, style(index)[1]
        else:
            label, (colour, line) = one.name, style(one.place)
            if places.count(one.place) > 1:  # checkpoints share the run's colour but not its line style
                label = one.model
                line = style(one.place + index - places.index(one.place))[1]
        mean, low, high = np.array([scores[f"{family}@{k}"].interval for k in ks], dtype=np.float64).T
        points = []
        if family == "pass":
            first = [(k, scores[f"first_pass@{k}"].interval.estimate) for k in ks if f"first_pass@{k}" in scores]
            first_k, estimates = np.array(first, dtype=np.float64).reshape(-1, 2).T
            points = [Points("first k", first_k, estimates, filled=False)]
        x = np.array(ks, dtype=np.float64)
        series.append(Series(label, colour, line, x, mean, band=(low, high), points=tuple(points)))
    name = f"{file_name(benchmark)}_{family}_at_k"
    return Chart(name, f"{title}, {benchmark}", caption, "k", title, None, tuple(series))


def _column(run: RunRecord, metric: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (steps, values) of a metric."""
    rows = [(row["step"], row[metric]) for row in run.rows if metric in row]
    table = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


MOST = 1000  # values per curve on the page
_HERE = Path(__file__).parent
_UPLOT = _HERE / "vendor" / "uplot-1.6.32"


class Script(NamedTuple):
    """The parts of a page with live charts: the script, its SHA-256 (the page allows no other), and uPlot's CSS."""

    text: Markup
    digest: str
    css: Markup


@cache
def script() -> Script:
    """Return the script, which is the same on every page."""
    from markupsafe import Markup

    licence, uplot = ((_UPLOT / name).read_text("utf-8") for name in ("LICENSE", "uPlot.iife.min.js"))
    _, _, code = uplot.partition("*/")  # its first line is a comment with version and address
    ours = (_HERE / "live.js").read_text("utf-8")
    text = f"/* uPlot 1.6.32\n\n{licence}*/{code}\n{ours}"
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(Markup(text), digest, Markup((_UPLOT / "uPlot.min.css").read_text("utf-8")))


def on_page(charts: Sequence[Chart]) -> dict[str, Any]:
    """Return the values for charts.html.j2: `charts`, each with its data; `live`, the script; `most`, the number of
    values if a curve was thinned."""
    long = any(len(series.x) > MOST for chart in charts for series in chart.series)
    return {
        "charts": [(chart, chart_data(chart)) for chart in charts],
        "live": script(),
        "most": MOST if long else None,
    }


def chart_data(chart: Chart) -> dict[str, Any]:
    """Return the chart's data for live.js, as JSON without NaN. Values have five digits."""
    series = [_series(chart, one) for one in chart.series]
    return {
        "title": one_line(chart.title),
        "x": chart.x_name,
        "unit": chart.unit,
        "level": chart.level,
        "series": series,
    }


def _series(chart: Chart, series: Series) -> dict[str, Any]:
    """Return a series. Its `parts` are columns of values that share an x."""
    columns = [(chart.value, "line", series.y)]
    if series.faint is not None:
        columns.insert(0, (chart.x_name, "faint", series.faint))
    if series.band is not None:
        columns += [("from", "low", series.band[0]), ("to", "high", series.band[1])]
    kept = thinned(series.y if series.faint is None else series.faint)
    parts = []
    if len(kept):
        parts.append(_part(series.x[kept], [(name, kind, values[kept]) for name, kind, values in columns]))
    parts += [
        _part(points.x, [(points.name, "dots" if points.filled else "rings", points.y)]) for points in series.points
    ]
    return {"label": one_line(series.label), "colour": series.colour, "dash": DASHES[series.line], "parts": parts}


def _part(x: Values, columns: Sequence[tuple[str, str, Values]]) -> dict[str, Any]:
    shown = [
        {"name": one_line(name), "kind": kind, "values": [_short(value) for value in values.tolist()]}
        for name, kind, values in columns
    ]
    return {"x": [int(value) if value.is_integer() else value for value in x.tolist()], "columns": shown}


def _short(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None


def thinned(values: Values) -> NDArray[np.intp]:
    """Return the indices of the values to show. For more than MOST values, these are the first, the last, and the
    lowest and highest of each of MOST / 2 equal parts."""
    if len(values) <= MOST:
        return np.arange(len(values))
    low, high = (np.where(np.isfinite(values), values, outside) for outside in (np.inf, -np.inf))
    kept = [0, len(values) - 1]
    for part in np.array_split(np.arange(len(values)), MOST // 2):
        kept += [part[low[part].argmin()], part[high[part].argmax()]]
    return np.unique(kept)
