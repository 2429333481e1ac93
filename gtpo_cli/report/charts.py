"""The charts of a report, drawn by matplotlib: curves over training steps, and pass@k and maj@k over k.

Every run has one colour and one line style on all charts (after Okabe & Ito's palette: legible to the colour-blind, on
white and on black).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gtpo_cli.recipe.schema import LN_2
from gtpo_cli.report.figures import Chart, add_legend, label_text, new_figure, share_axis
from gtpo_cli.report.runs import BASE, Evaluation, RunRecord
from gtpo_cli.text import file_name
from gtpo_cli.tracking import find_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1A80BB", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":")
_BASE_COLOUR = "#888888"
_BINS = 400  # most points of a curve on paper; more steps are drawn as the range within each bin
_WINDOWS = 40  # the running mean looks at this part of the run

Series = tuple[str, str, str]  # label, colour, line style


@dataclass(frozen=True, slots=True)
class Curve:
    """A chart of one metric over steps. `share`: its axis is in percent. `line`: a level worth seeing."""

    name: str
    title: str
    metric: str
    share: bool = False
    line: tuple[float, str] | None = None
    held_out: str | None = None  # last part of the names of evaluations during training, drawn as points


CURVES = (
    Curve("accuracy", "Accuracy", "train/accuracy_rate", share=True, held_out="accuracy_rate"),
    Curve("strict_format", "Strict format", "train/strict_format_rate", share=True, held_out="strict_format_rate"),
    Curve("format", "Format, in the reward's mode", "train/format_rate", share=True),
    Curve("reward", "Reward", "train/reward_mean"),
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
    Curve("loss", "Loss", "optim/loss"),
    Curve("gradient", "Gradient norm", "optim/grad_norm"),
)


def training_charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """A chart for each metric that at least one run has; `format` only where it differs from strict format."""
    charts = []
    for curve in CURVES:
        # Of a policy-gradient loss the level says nothing; only SFT's can be read.
        shown = [None if curve.name == "loss" and run.method != "SFT" else run for run in runs]
        if _worth_drawing(curve, [run for run in shown if run is not None]):
            charts.append(_training_chart(curve, shown))
    return charts


def evaluation_charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """pass@k and maj@k over k for each benchmark, where there is more than one k."""
    charts = []
    for benchmark in dict.fromkeys(e.conditions.benchmark for run in runs for e in run.evaluations):
        shown = evaluated_series(runs, benchmark)
        for family, title in (("pass", "pass@k"), ("maj", "maj@k")):
            if any(len(evaluation.results.ks(family)) > 1 for _, evaluation in shown):
                charts.append(_k_chart(benchmark, family, title, shown))
    return charts


def evaluated_series(runs: Sequence[RunRecord], benchmark: str) -> list[tuple[Series, Evaluation]]:
    """Label, colour and evaluation of everything that was evaluated on a benchmark; equal evaluations once."""
    shown: dict[str, tuple[Series, Evaluation]] = {}
    for index, run in enumerate(runs):
        for evaluation in run.evaluations:
            conditions = evaluation.conditions
            if conditions.benchmark != benchmark:
                continue
            if conditions.subject == BASE:  # runs of one model and seed share it
                series = (f"{conditions.model} (base)", _BASE_COLOUR, style(len(shown))[1])
                shown.setdefault(conditions.digest, (series, evaluation))
            else:
                shown[f"{index} {conditions.digest}"] = ((run.name, *style(index)), evaluation)
    return list(shown.values())


def style(index: int) -> tuple[str, str]:
    """Colour and line style of the run at this place."""
    return COLOURS[index % len(COLOURS)], STYLES[index % len(STYLES)]


def window(steps: int) -> int:
    """Steps of the running mean."""
    return max(1, steps // _WINDOWS)


def running_mean(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Mean of the last `size` values at each place (fewer at the start); values that are not finite are left out."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    start = np.maximum(0, np.arange(len(values)) + 1 - size)
    number = counts[1:] - counts[start]
    with np.errstate(invalid="ignore"):
        return np.where(number > 0, (sums[1:] - sums[start]) / np.maximum(1, number), np.nan)


# -- drawing ----------------------------------------------------------------------------------------------------------


def _worth_drawing(curve: Curve, runs: Sequence[RunRecord]) -> bool:
    if curve.name == "format":
        return any(
            row.get("train/format_rate") != row.get("train/strict_format_rate") for run in runs for row in run.rows
        )
    return any(curve.metric in row for run in runs for row in run.rows)


def _training_chart(curve: Curve, runs: Sequence[RunRecord | None]) -> Chart:
    """Runs keep their place, and with it their colour; None is not drawn."""
    metric = find_metric(curve.metric)
    drawn = [(style(index), run) for index, run in enumerate(runs) if run is not None]
    longest = max(len(run.rows) for _, run in drawn)
    faint = "every step" if longest <= _BINS else f"the range within each {_BINS}th of the steps"
    caption = f"{curve.metric}: {metric.formula}. Faint: {faint}; line: mean of the last {window(longest)} steps."
    if curve.held_out and any(name.endswith(f"/{curve.held_out}") for _, run in drawn for name in _eval_names(run)):
        caption += " Points: test problems, evaluated during training."

    def draw(ink: str) -> Figure:
        figure, axes = new_figure(ink, curve.title)
        for (colour, line), run in drawn:
            steps, values = _column(run, curve.metric)
            if len(steps):
                _draw_steps(axes, steps, values, colour)
                axes.plot(
                    *_thinned(steps, running_mean(values, window(longest))),
                    line,
                    color=colour,
                    label=label_text(run.name),
                )
            for name in _eval_names(run):
                if curve.held_out and name.endswith(f"/{curve.held_out}"):
                    label = None if len(steps) else label_text(run.name)  # SFT has test points and no curve
                    axes.plot(*_column(run, name), "o", color=colour, markersize=3.5, markeredgewidth=0, label=label)
        if curve.line is not None:
            level, words = curve.line
            axes.axhline(level, color=ink, linewidth=0.8, linestyle=(0, (4, 3)))
            axes.annotate(words, (1.0, level), xycoords=("axes fraction", "data"), xytext=(-2, 2),
                          textcoords="offset points", ha="right", va="bottom", color=ink)  # fmt: skip
        axes.set_xlabel("step")
        share_axis(axes) if curve.share else axes.set_ylabel(metric.unit)
        add_legend(figure, axes, ink)
        return figure

    return Chart(curve.name, curve.title, caption, draw)


def _k_chart(benchmark: str, family: str, title: str, shown: Sequence[tuple[Series, Evaluation]]) -> Chart:
    caption = "Mean over problems; band: 95 % bootstrap interval over problems."
    if family == "pass":
        caption = "Line: unbiased pass@k; crosses: the first k completions. " + caption

    def draw(ink: str) -> Figure:
        figure, axes = new_figure(ink, f"{title}, {benchmark}")
        ticks: set[int] = set()
        for (label, colour, line), evaluation in shown:
            ks = evaluation.results.ks(family)
            if not ks:
                continue
            ticks.update(ks)
            intervals = np.array([evaluation.results.scores[f"{family}@{k}"].interval for k in ks])
            axes.plot(ks, intervals[:, 0], line, color=colour, label=label_text(label))
            axes.fill_between(ks, intervals[:, 1], intervals[:, 2], color=colour, alpha=0.18, linewidth=0)
            if family == "pass":
                scores = evaluation.results.scores
                first = [(k, scores[f"first_pass@{k}"].interval.estimate) for k in ks if f"first_pass@{k}" in scores]
                axes.plot(*np.array(first).reshape(-1, 2).T, "x", color=colour, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(ticks), [str(k) for k in sorted(ticks)])
        axes.minorticks_off()
        axes.set_xlabel("k")
        share_axis(axes)
        add_legend(figure, axes, ink)
        return figure

    return Chart(f"{file_name(benchmark)}_{family}_at_k", f"{title}, {benchmark}", caption, draw)


def _draw_steps(axes: Axes, steps: NDArray[np.float64], values: NDArray[np.float64], colour: str) -> None:
    """Every step, faint; where there are too many for the paper, the range within each bin, so that no peak is lost."""
    if len(steps) <= _BINS:
        axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.7)
        return
    edges = np.linspace(0, len(steps), _BINS + 1).astype(int)
    parts = [values[a:b][np.isfinite(values[a:b])] for a, b in pairwise(edges)]
    low = [part.min() if len(part) else math.nan for part in parts]
    high = [part.max() if len(part) else math.nan for part in parts]
    axes.fill_between(steps[edges[:-1]], low, high, color=colour, alpha=0.22, linewidth=0)


def _thinned(
    steps: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most _BINS points of a smooth line, the last one among them."""
    if len(steps) <= _BINS:
        return steps, values
    chosen = np.unique(np.linspace(0, len(steps) - 1, _BINS).round().astype(int))
    return steps[chosen], values[chosen]


def _column(run: RunRecord, metric: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows = [(row["step"], row[metric]) for row in run.rows if metric in row]
    table: NDArray[Any] = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _eval_names(run: RunRecord) -> list[str]:
    return sorted({name for row in run.rows for name in row if name.startswith("eval/")})
