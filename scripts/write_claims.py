"""Weigh the runs of `make claims` and write what came out below the registration in docs/claims.md, and the means.

    python scripts/write_claims.py [--runs build/claims]     # take the runs' numbers over, draw, weigh, write
    python scripts/write_claims.py --check                   # page and means are what docs/claims/*.csv say

docs/claims/<sweep>.csv hold every run's figures; scripts/claims_rules.py weighs them by the registered rules.
"""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from claims_rules import CLAIMS, DATA, INITIAL, ORDER, Finding, values
from written_files import ROOT, below, parser, write

from gtpo_cli.recipe.schema import LN_2
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.sweeps.estimates import rows_of
from gtpo_cli.sweeps.spec import Sweep, load_sweep
from gtpo_cli.sweeps.sweep_page import band_charts

PAGE = ROOT / "docs" / "claims.md"
START = "<!-- everything below is written by scripts/write_claims.py -->"
MEANS = "means.csv"
WINDOW = 15  # steps
# (sweep, chart, caption): drawn beside the table
CHARTS = (
    ("fig2_methods", "accuracy", "Figure 2, stable rate"),
    ("fig5a_kl", "truncated", "Where learning is hot: completions that run into the limit"),
    ("fig5a_kl", "accuracy", "Where learning is hot"),
    ("fig3_conflict", "truncated", "Figure 3, hot"),
    ("fig3_conflict", "entropy", "Figure 3, hot"),
    ("fig4a_gamma", "entropy", "Figure 4a, weak base"),
    ("fig4b_thresholds", "accuracy", "Figure 4b, weak base"),
    ("fig4c_only_negative", "entropy", "Figure 4c, weak base"),
    ("fig4d_entropy_control", "accuracy", "Figure 4d, weak base"),
    ("entropy_search", "entropy", "The search for entropy above ln 2, weak base"),
)

RUNS_MADE_AT = "8d53f66"
WITH_KL = {"fig2_methods": ("grpo_beta1e-6", "grpo_beta0.04"), "fig5a_kl": ("grpo_beta1e-6", "grpo_beta0.04")}


# -- the page ----------------------------------------------------------------------------------------------------------


def results() -> str:
    """What stands below the registration."""
    done = _done()
    lines = [
        "",
        "## What came out",
        "",
        "Two variants are compared by their means, the difference, in how many seeds that is positive, and p of the",
        "sign-flip test. The runs are those of `gtpo sweep SWEEP --jobs 2`; `make claims` makes all.",
        "",
        "| | sweeps | figures | verdict |",
        "|---|---|---|---|",
    ]
    for name, (sweeps, weigh) in CLAIMS.items():
        names = sweeps.split(", ")
        finding = weigh() if set(names) <= done else Finding("the runs are not all there yet", "open")
        lines.append(
            f"| {name} | {', '.join(f'`{sweep}`' for sweep in names)} | {finding.figures} | **{finding.verdict}** |"
        )
    lines += [
        "",
        f"The runs were made at commit {RUNS_MADE_AT}. Later code adds up in another order and draws other random",
        "numbers: `make claims` gives other runs of the same experiments. `make claims-check` makes two of them again",
        "and compares.",
        "",
        f"`docs/claims/{MEANS}` has the means over seeds of every sweep, `docs/claims/<sweep>.csv` every run.",
        "",
    ]
    lines += ["## Curves", "", "Lines: mean over seeds; bands: from the lowest to the highest seed.", ""]
    for sweep, chart, caption in CHARTS:
        if (DATA / f"{sweep}_{chart}.png").exists():
            lines += [f"{caption} (`{sweep}`):", "", f"![{chart}](claims/{sweep}_{chart}.png)", ""]
    return "\n".join(lines).rstrip() + "\n"


def means() -> str:
    """The file of means over seeds: a line for each variant of each sweep."""
    lines = [",".join(("sweep", "variant", *_SHOWN))]
    for sweep in sorted(_done()):
        columns = [values(sweep, figure) for figure in _SHOWN]
        for variant in values(sweep, "test accuracy"):
            found = (column.get(variant, {}).values() for column in columns)
            lines.append(",".join((sweep, variant, *(f"{fmean(seeds):.3g}" if seeds else "" for seeds in found))))
    return "\n".join(lines) + "\n"


def _done() -> set[str]:
    """Sweeps whose runs are all there."""
    return {path.stem for path in DATA.glob("*.csv")} - {Path(name).stem for name in (ORDER, INITIAL, MEANS)}


_SHOWN = (
    "accuracy", "test accuracy", "strict format", "truncated", "forgets to stop", "length", "entropy", "entropy peak",
    "passes ln 2", "filtered", "KL", "groups push starts down", "groups push ends down",
)  # fmt: skip


def take_over(runs: Path) -> None:
    """Copy the figures of finished sweeps to docs/claims, and draw their charts."""
    order: list[list[object]] = [["sweep", "variant", "seed", "entropy step", "KL step"]]
    initial: list[list[object]] = [["sweep", "variant", "seed", "initial entropy"]]
    for folder in sorted(path.parent for path in runs.glob("*/runs.csv")):
        sweep = load_sweep(folder.name, folder=folder)
        if sweep.done < len(sweep.runs):
            print(f"{folder.name}: {len(sweep.runs) - sweep.done} runs are missing, left out")
            continue
        shutil.copy(folder / "runs.csv", DATA / f"{folder.name}.csv")
        initial += _initial_entropies(sweep)
        order += _entropy_before_kl(sweep)
        _draw(sweep)
    _write_csv(INITIAL, initial)
    _write_csv(ORDER, order)


def _initial_entropies(sweep: Sweep) -> Iterator[list[object]]:
    for run in sweep.runs:
        entropy = RunFolder(run.path).initial_entropy()
        if entropy is not None:
            yield [sweep.name, run.variant, run.seed, round(entropy, 6)]


def _entropy_before_kl(sweep: Sweep) -> Iterator[list[object]]:
    """Of the runs with a KL term that pass ln 2, the steps at which entropy and KL are half way."""
    for run in sweep.runs:
        if run.variant in WITH_KL.get(sweep.name, ()):
            entropy, kl = (smoothed(rows_of(run), metric) for metric in ("entropy/mean", "policy/kl"))
            if max(entropy) > LN_2:
                yield [sweep.name, run.variant, run.seed, half_way(entropy), half_way(kl)]


def _draw(sweep: Sweep) -> None:
    wanted = {chart for name, chart, _ in CHARTS if name == sweep.name}
    if not wanted:
        return
    rows = {variant: [rows_of(run) for run in sweep.of(variant)] for variant in sweep.file.variants}
    for chart in band_charts(rows):
        if chart.name in wanted:
            file = DATA / f"{sweep.name}_{chart.name}.png"
            figure = chart.draw("#000000")
            figure.savefig(file, dpi=110, facecolor="white", metadata={"Software": None})


def _write_csv(name: str, rows: Sequence[Sequence[object]]) -> None:
    with (DATA / name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def smoothed(rows: Sequence[Mapping[str, float]], metric: str) -> list[float]:
    """Mean of 15 steps, from the 15th on."""
    column = [row[metric] for row in rows]
    return [fmean(column[end - WINDOW : end]) for end in range(WINDOW, len(column) + 1)]


def half_way(series: Sequence[float]) -> int:
    """The first place (from 1) at which a series has made half of its way from its first to its last value."""
    start, end = series[0], series[-1]
    return next(i for i, value in enumerate(series, start=1) if abs(value - start) >= abs(end - start) / 2)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=Path, default=ROOT / "build" / "claims")
    chosen = arguments.parse_args()
    if not chosen.check:
        take_over(chosen.runs)
    return write({PAGE: below(START, PAGE, results()), DATA / MEANS: means()}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
