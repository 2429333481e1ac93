"""Two folders of benchmark results side by side: what changed beyond noise. Run: `make bench-compare BASE=folder`.

A figure is flagged when it is worse (more) by over a tenth and by more than twice the spread that repeated runs of the
same code showed; ratios of CPU time spread by about 5 % on a busy machine, absolute times by 15 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

_NOISE = {"": 0.05, "of a step": 0.15, "s": 0.15, "ms": 0.15, "MB": 0.03}


def compare(base: Path, new: Path) -> tuple[str, int]:
    """Markdown table, and how many figures are flagged as worse."""
    before, after = read(base), read(new)
    lines = ["| figure | before | now | change | |", "|---|---|---|---|---|"]
    worse = 0
    for name, (value, unit) in after.items():
        if name not in before:
            lines.append(f"| {name} | | {value:.3g} {unit} | | new |")
            continue
        old = before[name][0]
        change = value / old - 1 if old else float("inf") if value else 0.0
        bound = max(0.1, 2 * _NOISE.get(unit, 0.15))
        flag = "**worse**" if change > bound else "better" if change < -bound else ""
        worse += change > bound
        lines.append(f"| {name} | {old:.3g} {unit} | {value:.3g} {unit} | {change:+.0%} | {flag} |")
    for name, (value, unit) in before.items():
        if name not in after:
            lines.append(f"| {name} | {value:.3g} {unit} | | | gone |")
    return "\n".join(lines) + "\n", worse


def read(folder: Path) -> dict[str, tuple[float, str]]:
    """(value, unit) of every figure in the folder's JSON files."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise SystemExit(f"{folder}: no benchmark results (*.json); make bench writes them to build/bench")
    figures = [figure for file in files for figure in json.loads(file.read_text(encoding="utf-8"))["figures"]]
    return {figure["name"]: (figure["value"], figure["unit"]) for figure in figures}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path, help="results of the code to compare with")
    parser.add_argument("new", type=Path, nargs="?", default=Path("build/bench"))
    arguments = parser.parse_args()
    table, worse = compare(arguments.base, arguments.new)
    print(table)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
