"""The charts of a report, drawn by matplotlib: curves over training steps, and pass@k and maj@k over k.

Every run has one colour and one line style on all charts (after Okabe & Ito's palette: legible to the colour-blind, on
white and on black).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gtpo_cli.recipe.schema import LN_2
from gtpo_cli.report.figures import Chart, add_legend, label_text, new_figure, share_axis
from gtpo_cli.report.run_record import Evaluated, RunRecord, evaluated
from gtpo_cli.text import file_name
from gtpo_cli.tracking import find_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1A80BB", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":")
_BASE_COLOUR = "#888888"
_WINDOWS = 40  # the running mean looks at this part of the run


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
    for benchmark, shown in evaluated(runs).items():
        for family, title in (("pass", "pass@k"), ("maj", "maj@k")):
            if any(len(one.evaluation.results.ks(family)) > 1 for one in shown):
                charts.append(_k_chart(benchmark, family, title, shown))
    return charts


def style(index: int) -> tuple[str, str]:
    """Colour and line style of the run at this place."""
    return COLOURS[index % len(COLOURS)], STYLES[index % len(STYLES)]


def window(steps: int) -> int:
    """Steps of the running mean."""
    return max(1, steps // _WINDOWS)


def running_mean(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Mean of the last `size` values at each place (fewer at the start); values that are not finite are left out."""
    finite, ones = np.isfinite(values), np.ones(size)
    # Each sum by itself: differences of cumulative sums would lose what is small after one large value.
    sums = np.convolve(np.where(finite, values, 0.0), ones)[: len(values)]
    counts = np.convolve(finite, ones)[: len(values)]
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, sums / counts, np.nan)


# -- drawing ----------------------------------------------------------------------------------------------------------


def _worth_drawing(curve: Curve, runs: Sequence[RunRecord]) -> bool:
    rows = [row for run in runs for row in run.rows]
    if curve.name == "format":
        return any(row.get("train/format_rate") != row.get("train/strict_format_rate") for row in rows)
    return any(curve.metric in row for row in rows)


def steps_chart(curve: Curve, how: str, draw_lines: Callable[[Axes], None]) -> Chart:
    """The chart of a curve over steps, whose lines `draw_lines` puts in; `how` says in the caption what they are."""
    metric = find_metric(curve.metric)

    def draw(ink: str) -> Figure:
        figure, axes = new_figure(ink, curve.title)
        draw_lines(axes)
        if curve.line is not None:
            level, words = curve.line
            axes.axhline(level, color=ink, linewidth=0.8, linestyle=(0, (4, 3)))
            axes.annotate(words, (1.0, level), xycoords=("axes fraction", "data"), xytext=(-2, 2),
                          textcoords="offset points", ha="right", va="bottom", color=ink)  # fmt: skip
        axes.set_xlabel("step")
        share_axis(axes) if curve.share else axes.set_ylabel(metric.unit)
        add_legend(figure, axes, ink)
        return figure

    return Chart(curve.name, curve.title, f"{curve.metric}: {metric.formula}. {how}", draw)


def _training_chart(curve: Curve, runs: Sequence[RunRecord | None]) -> Chart:
    """Runs keep their place, and with it their colour; None is not drawn."""
    drawn = [(style(index), run) for index, run in enumerate(runs) if run is not None]
    size = window(max(len(run.rows) for _, run in drawn))
    how = f"Faint: every step; line: mean of the last {size} steps."
    if any(_held_out(curve, run) for _, run in drawn):
        how += " Points: test problems, evaluated during training."

    def draw_lines(axes: Axes) -> None:
        for (colour, line), run in drawn:
            label: str | None = label_text(run.name)
            steps, values = _column(run, curve.metric)
            if len(steps):
                axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.7)
                axes.plot(steps, running_mean(values, size), line, color=colour, label=label)
                label = None
            for name in _held_out(curve, run):  # SFT has test points and no curve
                axes.plot(*_column(run, name), "o", color=colour, markersize=3.5, markeredgewidth=0, label=label)

    return steps_chart(curve, how, draw_lines)


def _held_out(curve: Curve, run: RunRecord) -> list[str]:
    """The metrics of evaluations during training that belong on a curve's chart."""
    names = {name for row in run.rows for name in row if name.startswith("eval/")}
    return sorted(name for name in names if curve.held_out and name.endswith(f"/{curve.held_out}"))


def _k_chart(benchmark: str, family: str, title: str, shown: Sequence[Evaluated]) -> Chart:
    caption = "Mean over problems; band: 95 % bootstrap interval over problems."
    if family == "pass":
        caption = "Line: unbiased pass@k; crosses: the first k completions. " + caption

    def draw(ink: str) -> Figure:
        figure, axes = new_figure(ink, f"{title}, {benchmark}")
        places = [one.place for one in shown]
        for index, one in enumerate(shown):
            ks, scores = one.evaluation.results.ks(family), one.evaluation.results.scores
            if not ks:
                continue
            if one.place is None:
                label, colour, line = f"{one.name} (base)", _BASE_COLOUR, style(index)[1]
            else:
                label, (colour, line) = one.name, style(one.place)
                if places.count(one.place) > 1:  # the run's checkpoints: its colour, a line each
                    label = one.model
                    line = style(one.place + index - places.index(one.place))[1]
            intervals = np.array([scores[f"{family}@{k}"].interval for k in ks])
            axes.plot(ks, intervals[:, 0], line, color=colour, label=label_text(label))
            axes.fill_between(ks, intervals[:, 1], intervals[:, 2], color=colour, alpha=0.18, linewidth=0)
            if family == "pass":
                first = [(k, scores[f"first_pass@{k}"].interval.estimate) for k in ks if f"first_pass@{k}" in scores]
                axes.plot(*np.array(first).reshape(-1, 2).T, "x", color=colour, markersize=4)
        ticks = sorted({k for one in shown for k in one.evaluation.results.ks(family)})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(k) for k in ticks])
        axes.minorticks_off()
        axes.set_xlabel("k")
        share_axis(axes)
        add_legend(figure, axes, ink)
        return figure

    return Chart(f"{file_name(benchmark)}_{family}_at_k", f"{title}, {benchmark}", caption, draw)


def _column(run: RunRecord, metric: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(steps, values) of a metric."""
    rows = [(row["step"], row[metric]) for row in run.rows if metric in row]
    table = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
