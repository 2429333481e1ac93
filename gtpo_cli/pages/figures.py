"""Charts: their data, and files of them, SVG and PNG, drawn by matplotlib. `live.py` puts them on a page."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gtpo_cli.errors import EvaluationError
from gtpo_cli.runs.files import guarded, own_folder, write_aside
from gtpo_cli.text import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = NDArray[np.float64]

DASHES = {"-": "", "--": "6 3", "-.": "6 2 1 2", ":": "1 2"}  # matplotlib's line styles as SVG dashes
_INK = "#000000"  # of text and axes
_SIZE = (4.6, 3.0)  # inches
_LEGEND_LINES, _LEGEND_LINE_INCHES = 4, 0.19  # lines that fit this height; the height of each further line
_LABEL_LENGTH = 80


class Points(NamedTuple):
    """Marks beside a line with their own x: dots, or rings if not `filled`."""

    name: str
    x: Values
    y: Values
    filled: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One entry of the legend: a line of `y` over `x` in its colour and style (matplotlib's `-`, `--`). `faint`: the
    values that the line averages. `band`: lower and upper values. All have the same x. The line breaks at non-finite
    values."""

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
    """A chart: its file name (without folder and suffix), title, caption, and its series over `x_name` (step, or k with
    a logarithmic axis). `value`: a short name of the lines' values. `unit`: of y, None for a share, shown in percent.
    `level`: a reference value and its name."""

    name: str
    title: str
    caption: str
    x_name: str
    value: str
    unit: str | None
    series: tuple[Series, ...]
    level: tuple[float, str] | None = None

    def draw(self) -> Figure:
        figure, axes = _empty(self.title)
        for series in self.series:
            _draw_series(axes, series)
        if self.level is not None:
            value, name = self.level
            axes.axhline(value, color=_INK, linewidth=0.8, linestyle=(0, (4, 3)))
            axes.annotate(name, (1.0, value), xycoords=("axes fraction", "data"), xytext=(-2, 2),
                          textcoords="offset points", ha="right", va="bottom", color=_INK)  # fmt: skip
        if self.x_name == "k":
            ticks = sorted({int(k) for series in self.series for k in series.x})
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [str(k) for k in ticks])
            axes.minorticks_off()
        axes.set_xlabel(self.x_name)
        _share_axis(axes) if self.unit is None else axes.set_ylabel(self.unit)
        _add_legend(figure, axes)
        return figure


def label_text(name: str) -> str:
    """Escape a name for a legend or title. matplotlib reads $ as mathematics, and hides names that begin with _."""
    name = one_line(name, most=_LABEL_LENGTH)
    return (name.lstrip("_") or name).replace("\\", "\u2216").replace("$", r"\$")


def write_charts(charts: Sequence[Chart], folder: Path) -> None:
    """Write each chart as SVG and PNG. Raises OSError, and EvaluationError for a chart that cannot be drawn."""
    own_folder(folder)
    for chart in charts:
        what = f"the chart {one_line(chart.title)} cannot be drawn from the run's figures"
        with guarded(lambda why, what=what: EvaluationError(f"{what} ({why}); was metrics.jsonl changed?")):  # type: ignore[misc]
            svg, png = chart_files(chart)
        write_aside(folder / f"{chart.name}.svg", svg)
        write_aside(folder / f"{chart.name}.png", png)


# -- output -----------------------------------------------------------------------------------------------------------


def chart_files(chart: Chart) -> tuple[bytes, bytes]:
    """Return the chart as an SVG file, black on transparent, and as a PNG with 300 dots per inch on white."""
    svg, png = io.BytesIO(), io.BytesIO()
    # Text stays text, equal drawings give equal bytes, and long curves keep only visible detail.
    with _style({"svg.fonttype": "none", "svg.hashsalt": "gtpo", "path.simplify_threshold": 1.0}):
        figure = chart.draw()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it is laid out now; each savefig would do it again, which takes longest
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=300, facecolor="white", metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


# -- drawing ----------------------------------------------------------------------------------------------------------


@contextmanager
def _style(settings: dict[Any, Any]) -> Iterator[None]:
    """Draw with matplotlib's own style and these settings, whatever a file `matplotlibrc` says."""
    if "matplotlib" not in sys.modules:  # it reads that file of the working folder, which may be a stranger's
        with chdir(Path(__file__).parent):
            import matplotlib as mpl
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield


def _empty(title: str) -> tuple[Figure, Axes]:
    """Create an empty chart with a title and a transparent background."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.set_title(label_text(title), color=_INK, loc="left", fontsize=11, fontweight="bold")
    axes.grid(visible=True, color=_INK, alpha=0.12, linewidth=0.6)
    axes.tick_params(colors=_INK, labelsize=9, length=3)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    for side, spine in axes.spines.items():
        spine.set_color(_INK)
        spine.set_alpha(0.5)
        spine.set_visible(side in ("left", "bottom"))
    return figure, axes


def _draw_series(axes: Axes, series: Series) -> None:
    """Draw a series. Its name is in the legend once: for the line, or for the first points without a line."""
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
    """Set the y axis to percent: from 0 to 100, or closer if all values are small."""
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    high = axes.get_ylim()[1]
    if high > 0.2:
        axes.set_ylim(-0.02, 1.02)
    else:  # a small share keeps its own scale, from zero
        top = max(high, 0.01)
        axes.set_ylim(-0.02 * top, top)


def _add_legend(figure: Figure, axes: Axes) -> None:
    """Add a legend below the axes, where it covers nothing; none for a single line."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        longest = max(map(len, labels))
        columns = 1 if longest > 24 else 2 if longest > 12 else 3
        figure.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=8, labelcolor=_INK,
                      ncols=columns)  # fmt: skip
        more = max(0, math.ceil(len(labels) / columns) - _LEGEND_LINES)
        figure.set_figheight(_SIZE[1] + _LEGEND_LINE_INCHES * more)  # otherwise a long legend would squeeze the axes
