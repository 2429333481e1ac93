"""Markdown rows of finished runs: `python scripts/tabulate_runs.py runs/demo-*`.

Accuracy and strict format are means over the last twentieth of the steps; minutes are the sum of time/step.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gtpo_cli.run_folder import RunFolder
from gtpo_cli.tracking import read_metrics
from gtpo_cli.training.summary import changes


def row(run: RunFolder) -> str:
    rows = read_metrics(run.metrics_file)
    recipe = run.recipe()
    found = {change.name: change for change in changes(rows)}
    cells = [run.name, recipe.objective.name, str(recipe.seed), str(len(rows))]
    for name in ("train/accuracy_rate", "train/strict_format_rate", "completions/truncated_share"):
        if name in found:
            cells.append(f"{found[name].first:.3f} -> {found[name].last:.3f}")
        else:
            last = [r[name] for r in rows[-max(1, len(rows) // 20) :] if name in r]
            cells.append(f"{sum(last) / len(last):.3f}" if last else "")
    cells.append(f"{found['entropy/mean'].first:.3f} -> {found['entropy/mean'].last:.3f}")
    cells.append(f"{sum(r['time/step'] for r in rows) / 60:.1f}")
    cells.append(f"{max(r['memory/peak_bytes'] for r in rows) / 1e6:.0f} MB")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    print("| run | objective | seed | steps | accuracy | strict format | truncated | entropy | minutes | memory |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in sys.argv[1:]:
        print(row(RunFolder(Path(name))))


if __name__ == "__main__":
    main()
