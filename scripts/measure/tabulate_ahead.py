"""What several steps a generation do to learning: the table and the picture of docs/results.md, from a sweep's runs.

    gtpo sweep steps_per_generation
    python scripts/measure/tabulate_ahead.py runs/sweeps/steps_per_generation/runs [--image FILE] [--csv FILE]

Accuracy is train/accuracy_rate, the mean over seeds with Student's 95 % interval. --csv stores the means of
ten steps of each run; --image draws the means over seeds against completions.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from gtpo_cli.estimators import mean_interval
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tracking import read_metrics

TENS = 10
Series = dict[tuple[str, int], dict[int, list[dict[str, float]]]]  # method and K -> seed -> metrics of each step


def read(folder: Path) -> tuple[Series, int]:
    """The runs, and completions in a step."""
    series: Series = defaultdict(dict)
    completions = 0
    for path in sorted(folder.iterdir()):
        recipe = RunFolder(path).recipe()
        key = recipe.objective.name, recipe.rollout.steps_per_generation
        series[key][recipe.seed] = read_metrics(RunFolder(path).metrics_file)
        completions = recipe.rollout.group_size * recipe.rollout.prompts_per_step
    return dict(sorted(series.items())), completions


def table(series: Series, completions: int) -> str:
    lines = [
        f"| | K | steps 31 to 50 (to {50 * completions:,} completions) | steps 81 to 100 (to {100 * completions:,}) | "
        "last twentieth | largest ratio | clipped tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for (method, K), runs in series.items():
        cells = [method.upper(), str(K)]
        for first, last in ((31, 50), (81, 100), (None, None)):
            means = []
            for rows in runs.values():
                chosen = rows[-max(1, len(rows) // 20) :] if first is None else rows[first - 1 : last]
                means.append(fmean(row["train/accuracy_rate"] for row in chosen))
            found = mean_interval(means)
            cells.append(f"{found.estimate:.3f} ({found.low:.3f} to {found.high:.3f})")
        ratios = [row for rows in runs.values() for row in rows if "ratio/max" in row]
        cells.append(f"{max(row['ratio/max'] for row in ratios):.3g}" if ratios else "")
        cells.append(f"{100 * fmean(row['ratio/clipped_share'] for row in ratios):.1f} %" if ratios else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tens(rows: list[dict[str, float]]) -> list[float]:
    """The mean accuracy of each ten steps."""
    starts = range(0, len(rows), TENS)
    return [fmean(row["train/accuracy_rate"] for row in rows[start : start + TENS]) for start in starts]


def store(series: Series, completions: int, file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow(["method", "steps per generation", "seed", "completions", "accuracy"])
        for (method, K), runs in series.items():
            for seed, rows in sorted(runs.items()):
                for number, mean in enumerate(tens(rows), start=1):
                    out.writerow([method, K, seed, number * TENS * completions, f"{mean:.4f}"])


def draw(series: Series, completions: int, file: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    methods = list(dict.fromkeys(method for method, _ in series))
    figure, axes = pyplot.subplots(1, len(methods), figsize=(5 * len(methods), 3.5), sharey=True, squeeze=False)
    for axis, method in zip(axes[0], methods, strict=True):
        for (of, K), runs in series.items():
            if of == method:
                means = [fmean(column) for column in zip(*map(tens, runs.values()), strict=True)]
                axis.plot([n * TENS * completions for n in range(1, len(means) + 1)], means, label=f"K = {K}")
        axis.set(title=method.upper(), xlabel="completions")
        axis.legend()
    axes[0][0].set_ylabel("accuracy of the training completions")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--image", type=Path)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    series, completions = read(asked.runs)
    print(table(series, completions))
    if asked.csv:
        store(series, completions, asked.csv)
    if asked.image:
        draw(series, completions, asked.image)


if __name__ == "__main__":
    main()
