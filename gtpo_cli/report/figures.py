"""What a chart is, how matplotlib draws it, and the ways out (page, SVG file, PNG file).

A drawing has one colour of text and axes, `ink`: black in files, on the page that of its text. `live.py` draws the same
chart in the browser.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gtpo_cli.errors import EvaluationError
from gtpo_cli.files import guarded, own_folder, write_aside
from gtpo_cli.text import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = NDArray[np.float64]

DASHES = {"-": "", "--": "6 3", "-.": "6 2 1 2", ":": "1 2"}  # of matplotlib's line styles, in SVG
_INK = "#010203"  # stands for the colour of text and axes in an SVG until it is written
_SIZE = (4.6, 3.0)  # inches
_LEGEND_LINES, _LEGEND_LINE_INCHES = 4, 0.19  # what that height has room for; each line more takes this
_LABEL_LENGTH = 80


class Points(NamedTuple):
    """Marks beside a line, with an x of their own: dots, or rings where they are not `filled`."""

    name: str
    x: Values
    y: Values
    filled: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """What one name of the legend stands for: a line in its colour and style (matplotlib's: `-`, `--`) through `y` over
    `x`. `faint`: the values at the same x that the line is a mean of. `band`: from, to, at the same x. Where a value is
    not finite, the line is broken."""

    label: str
    colour: str
    line: str
    x: Values
    y: Values
    faint: Values | None = None
    band: tuple[Values, Values] | None = None
    points: tuple[Points, ...] = ()


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart: its file name (without folder and suffix), title, caption, and its series over `x_name` (step, or k,
    whose axis is logarithmic). `value`: what the lines are, in a word or two. `unit`: of y, None for a share, which is
    shown in percent. `level`: a value worth seeing, and its name."""

    name: str
    title: str
    caption: str
    x_name: str
    value: str
    unit: str | None
    series: tuple[Series, ...]
    level: tuple[float, str] | None = None

    def draw(self, ink: str) -> Figure:
        """The drawing, with text and axes in this colour."""
        figure, axes = _empty(ink, self.title)
        for series in self.series:
            _draw_series(axes, series)
        if self.level is not None:
            value, name = self.level
            axes.axhline(value, color=ink, linewidth=0.8, linestyle=(0, (4, 3)))
            axes.annotate(name, (1.0, value), xycoords=("axes fraction", "data"), xytext=(-2, 2),
                          textcoords="offset points", ha="right", va="bottom", color=ink)  # fmt: skip
        if self.x_name == "k":
            ticks = sorted({int(k) for series in self.series for k in series.x})
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [str(k) for k in ticks])
            axes.minorticks_off()
        axes.set_xlabel(self.x_name)
        _share_axis(axes) if self.unit is None else axes.set_ylabel(self.unit)
        _add_legend(figure, axes, ink)
        return figure

    @cached_property
    def svg(self) -> str:
        """Drawn once, for the page and for the file, which differ in the ink."""
        import matplotlib as mpl

        stream = io.StringIO()
        # Text stays text; the same drawing gives the same bytes; of 100,000 steps what the eye can tell apart.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gtpo", "path.simplify_threshold": 1.0}):
            self.draw(_INK).savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        return stream.getvalue()


def label_text(name: str) -> str:
    """A name in a legend or title: matplotlib would read $ as mathematics, and hide what begins with _."""
    name = one_line(name, most=_LABEL_LENGTH)
    return (name.lstrip("_") or name).replace("\\", "\u2216").replace("$", r"\$")


def write_charts(charts: Sequence[Chart], folder: Path) -> None:
    """Each chart as SVG and PNG into the folder. Raises OSError, and EvaluationError for one that cannot be drawn."""
    own_folder(folder)
    for chart in charts:
        what = f"the chart {one_line(chart.title)} cannot be drawn from the run's figures"
        with guarded(lambda why, what=what: EvaluationError(f"{what} ({why}); is metrics.jsonl as it was?")):  # type: ignore[misc]
            svg, png = file_svg(chart).encode(), file_png(chart)
        write_aside(folder / f"{chart.name}.svg", svg)
        write_aside(folder / f"{chart.name}.png", png)


# -- ways out --------------------------------------------------------------------------------------------------------


def page_svg(chart: Chart) -> str:
    """The chart as an SVG element for the page: scales with its box, text in the page's colour and font."""
    svg = chart.svg[chart.svg.index("<svg") :]
    label = html.escape(one_line(chart.title))

    def opening(found: re.Match[str]) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{found[1]}" role="img" aria-label="{label}" '
            'preserveAspectRatio="xMidYMid meet">'
        )

    svg = re.sub(r'<svg[^>]*?viewBox="([^"]*)"[^>]*>', opening, svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{chart.name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{chart.name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{chart.name}-\1"', svg)
    return svg.replace(_INK, "currentColor").replace("'DejaVu Sans'", "var(--font)")


def file_svg(chart: Chart) -> str:
    """The chart as an SVG file, black on a transparent ground."""
    return chart.svg.replace(_INK, "#000000")


def file_png(chart: Chart) -> bytes:
    """The chart as a PNG of 300 dots an inch on white."""
    stream = io.BytesIO()
    chart.draw("#000000").savefig(stream, format="png", dpi=300, facecolor="white", metadata={"Software": None})
    return stream.getvalue()


# -- drawing ----------------------------------------------------------------------------------------------------------


def _empty(ink: str, title: str) -> tuple[Figure, Axes]:
    """An empty chart with its title, in the ink's colour, without a ground of its own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.set_title(label_text(title), color=ink, loc="left", fontsize=11, fontweight="bold")
    axes.grid(visible=True, color=ink, alpha=0.12, linewidth=0.6)
    axes.tick_params(colors=ink, labelsize=9, length=3)
    axes.xaxis.label.set_color(ink)
    axes.yaxis.label.set_color(ink)
    for side, spine in axes.spines.items():
        spine.set_color(ink)
        spine.set_alpha(0.5)
        spine.set_visible(side in ("left", "bottom"))
    return figure, axes


def _draw_series(axes: Axes, series: Series) -> None:
    """The name stands in the legend once: with the line, or with the first points where there is no line."""
    label: str | None = label_text(series.label)
    colour = series.colour
    if len(series.x):
        if series.faint is not None:
            axes.plot(series.x, series.faint, color=colour, alpha=0.25, linewidth=0.7, zorder=1.9)  # below every line
        if series.band is not None:
            axes.fill_between(series.x, *series.band, color=colour, alpha=0.18, linewidth=0)
        axes.plot(series.x, series.y, series.line, color=colour, label=label)
        label = None
    for points in series.points:
        axes.plot(points.x, points.y, "o", color=colour, markersize=3.5 if points.filled else 5, label=label,
                  fillstyle="full" if points.filled else "none", markeredgewidth=0 if points.filled else 1)  # fmt: skip
        label = None


def _share_axis(axes: Axes) -> None:
    """A y axis in percent: from 0 to 100, or closer where everything is small."""
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    high = axes.get_ylim()[1]
    if high > 0.2:
        axes.set_ylim(-0.02, 1.02)
    else:  # a small share keeps its own scale, from zero
        top = max(high, 0.01)
        axes.set_ylim(-0.02 * top, top)


def _add_legend(figure: Figure, axes: Axes, ink: str) -> None:
    """Below the axes, so that it covers nothing; none for a single line."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        longest = max(map(len, labels))
        columns = 1 if longest > 24 else 2 if longest > 12 else 3
        figure.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=8, labelcolor=ink,
                      ncols=columns)  # fmt: skip
        more = max(0, math.ceil(len(labels) / columns) - _LEGEND_LINES)
        figure.set_figheight(_SIZE[1] + _LEGEND_LINE_INCHES * more)  # else many would leave the axes no room
