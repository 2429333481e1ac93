"""Markdown rows of finished runs: `python scripts/measure/tabulate_runs.py runs/demo-*`.

Accuracy, strict format and entropy are means over the first and the last twentieth of the steps, or over the first and
the last N with `--window N`; truncated is of the last ones; minutes are the sum of time/step.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tracking import read_metrics


def row(run: RunFolder, window: int | None = None) -> str:
    rows = read_metrics(run.metrics_file)
    recipe = run.recipe()
    cells = [run.name, recipe.objective.name, str(recipe.seed), str(len(rows))]
    cells += [" -> ".join(ends(rows, f"train/{name}_rate", window)) for name in ("accuracy", "strict_format")]
    cells += ends(rows, "completions/truncated_share", window)[-1:] or [""]
    cells.append(" -> ".join(ends(rows, "entropy/mean", window)))
    cells.append(f"{sum(r['time/step'] for r in rows) / 60:.1f}")
    cells.append(f"{max(r['memory/peak_bytes'] for r in rows) / 1e6:.0f} MB")
    return "| " + " | ".join(cells) + " |"


def ends(rows: Sequence[Mapping[str, float]], name: str, window: int | None) -> list[str]:
    """Means of a metric over its first and its last steps; nothing where no step has it."""
    values = [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]
    steps = window or math.ceil(len(values) / 20)
    return [f"{fmean(part):.3f}" for part in (values[:steps], values[-steps:])] if values else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--window", type=int, metavar="N", help="steps; default: a twentieth of the run's")
    options = parser.parse_args()
    print("| run | objective | seed | steps | accuracy | strict format | truncated | entropy | minutes | memory |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for path in options.runs:
        print(row(RunFolder(path), options.window))


if __name__ == "__main__":
    main()
