"""Interactive charts: the page contains their data and one script, and uPlot draws them.

Without scripts the page names the chart's SVG file. `vendor/` has the published uPlot with its licence.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gtpo_cli.pages.figures import DASHES, Chart, Series, Values
from gtpo_cli.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

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
