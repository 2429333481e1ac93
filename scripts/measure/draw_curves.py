"""One chart of the training accuracy of several runs, means over N steps, and the means as rows of a table.

    python scripts/measure/draw_curves.py docs/images/real_model.png \
      runs/demo-real='GTPO, seed 3407' runs/grpo-3407='GRPO, seed 3407' --window 4

A single step's accuracy is of a few problems and jumps; a mean over N steps shows where the run goes. A point stands at
the last of its N steps. Steps at the end that fill no window are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gtpo_cli.pages.figures import Chart, Series, Values, chart_files
from gtpo_cli.pages.run_charts import COLOURS, CURVES, STYLES
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tracking import read_metrics

(CURVE,) = (curve for curve in CURVES if curve.name == "accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("runs", nargs="+", metavar="RUN=LABEL")
    parser.add_argument("--window", type=int, default=10, metavar="N")
    options = parser.parse_args()
    named = [word.partition("=")[::2] for word in options.runs]
    lines = []
    for number, (path, label) in enumerate(named):
        rows = read_metrics(RunFolder(Path(path)).metrics_file)
        values = [float(row.get(CURVE.metric, np.nan)) for row in rows]
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
        lines.append(Series(label or Path(path).name, colour, style, *means(values, options.window)))
    title = f"{CURVE.title}, means over {options.window} steps"
    chart = Chart(CURVE.name, title, "", "step", CURVE.metric, None, tuple(lines))
    options.picture.write_bytes(chart_files(chart)[1])
    for line in lines:
        print(f"| {line.label} | {' | '.join(f'{100 * y:.0f}' for y in line.y)} |")


def means(values: Sequence[float], window: int) -> tuple[Values, Values]:
    """The last step of each window, and the mean over the window's finite values."""
    whole = len(values) // window
    parts = np.array(values[: whole * window], dtype=np.float64).reshape(whole, window)
    return window * np.arange(1.0, whole + 1), np.nanmean(parts, axis=1)


if __name__ == "__main__":
    main()
