"""The picture of README: held-out accuracy of the real model with intervals, from the table of docs/results.md.

python scripts/measure/draw_held_out.py docs/images/held_out.png
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[2] / "docs/results.md"
COLUMNS = {"accuracy": "one sampled answer", "greedy accuracy": "the likeliest answer (greedy)"}
COLOURS = {"SFT": "#555555", "GTPO": "#0072b2", "GRPO": "#d55e00", "entropy_advantage": "#009e73"}
_CELL = re.compile(r"([\d.]+) \(([\d.]+)-([\d.]+)\)")


class Share(NamedTuple):
    """Percent, with its 95 % interval."""

    estimate: float
    low: float
    high: float


def read_table(text: str) -> dict[str, dict[str, Share]]:
    """Model -> column -> share, of the rows of the real model's table that have intervals."""
    lines = text.partition("## A real model")[2].splitlines()
    head = next(line for line in lines if "greedy accuracy" in line)
    names = [cell.strip() for cell in head.strip("|").split("|")]
    found: dict[str, dict[str, Share]] = {}
    for line in lines[lines.index(head) + 2 :]:
        if not line.startswith("|"):
            break
        cells = dict(zip(names, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
        shares = {name: _CELL.fullmatch(cells[name]) for name in COLUMNS}
        if all(shares.values()):
            found[cells[""].replace("`", "")] = {
                name: Share(*map(float, match.groups())) for name, match in shares.items() if match
            }
    return found


def draw(table: dict[str, dict[str, Share]], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(COLUMNS), figsize=(8, 0.8 + 0.32 * len(table)), sharey=True, layout="constrained"
    )
    models = list(table)[::-1]
    for axis, (column, title) in zip(axes, COLUMNS.items(), strict=True):
        for place, model in enumerate(models):
            share = table[model][column]
            colour = COLOURS[model.partition(",")[0]]
            axis.plot([share.low, share.high], [place, place], color=colour, linewidth=2.5)
            axis.plot(share.estimate, place, "o", color=colour, markersize=7)
        axis.set(title=title, xlabel="right, %", xlim=(0, 70), yticks=range(len(models)), yticklabels=models)
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    draw(read_table(PAGE.read_text(encoding="utf-8")), parser.parse_args().picture)


if __name__ == "__main__":
    main()
