"""Write the tables of docs/claims.md from the runs of the third round, and draw its figure.

    python scripts/claims/write_page.py             # from docs/claims/round_three/*.csv
    python scripts/claims/write_page.py --check     # the page is what those files say

The answer above the tables is written by hand; tests/unit/sweeps/test_claims.py holds its figures against the files.
"""

from __future__ import annotations

import sys
from pathlib import Path

from analysis import GREEDY, PASS, PRIMARY, QUESTIONS, RECORDS, STUDIES, differences, matched, of_arm, whole_seeds
from arms import ARMS
from round_three import COMPARED, PAPER, RATES, chosen_rates, tuning_means

from gtpo_cli.estimators import Interval
from gtpo_cli.report.charts import COLOURS
from gtpo_cli.text import markdown_table

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))

from written_files import ROOT, below, parser, write

PAGE, FIGURE = ROOT / "docs" / "claims.md", RECORDS / "arms.png"
MARKER = "<!-- from here on written by scripts/claims/write_page.py -->"
ASKED = {
    "Q1": "Does GTPO teach what GRPO does not?",
    "Q2": "Does the correction alone?",
    "Q3": "Is it where the weight goes?",
    "Q4": "Or that wrong completions weigh less?",
    "Q5": "Is GTPO more than its correction?",
    "Q6": "Is another method as good?",
}


def studies() -> list[str]:
    """Those with enough seeds for an interval."""
    return [study for study in STUDIES if len(whole_seeds(study)) > 1]


def tables() -> str:
    return "\n\n".join(
        [
            "## Every arm",
            *map(_of_arms, studies()),
            "## The registered questions",
            _of_questions(),
            "## Rates",
            _rates(),
        ]
    )


def _of_arms(study: str) -> str:
    seeds = len(whole_seeds(study))
    heads = [name for name, _ in PRIMARY.values()]
    rows = [
        [
            ARMS[arm].words,
            *(_share(of_arm(study, arm, outcome)) for outcome in PRIMARY),
            _share(of_arm(study, arm, "pass@1 3")),
            _share(matched(study, arm)),
            _share(of_arm(study, arm, "maj@64 3")),
            f"{of_arm(study, arm, 'entropy t1.0').estimate:.3f}",
        ]
        for arm in COMPARED
    ]
    head = [
        "after " + str(STUDIES[study]) + " steps",
        *heads,
        "temperature 1",
        "at GRPO's entropy",
        "maj@64",
        "entropy",
    ]
    return (
        f"After {STUDIES[study]} steps: means over {seeds} seeds, in percent, and the half width of the 95 % interval. "
        "The last four columns are of three operations; entropy is in nats per token.\n\n" + markdown_table(head, rows)
    )


def _share(found: Interval) -> str:
    return f"{100 * found.estimate:.1f} ± {100 * (found.high - found.estimate):.1f}"


def _of_questions() -> str:
    rows = []
    for question, pairs in QUESTIONS.items():
        of_question = differences(question)
        for more, less in pairs:
            for study in studies():
                own = [d for d in of_question if (d.study, d.more, d.less) == (study, more, less)]
                cells = [f"{_points(d.found)} {d.says}{'*' if d.p < 0.05 else ''}" for d in own]
                pair = f"{ARMS[more].words} - {ARMS[less].words}"
                rows.append([ASKED[question], pair, str(STUDIES[study]), *cells])
    return (
        "Differences in percentage points, paired by seed, with 95 % intervals. The margin is 2 points. A star: p is "
        "below 0.05 after Holm's correction over the eight tests of the pair.\n\n"
        + markdown_table(["question", "difference", "steps", *(name for name, _ in PRIMARY.values())], rows)
    )


def _points(found: Interval) -> str:
    return f"{100 * found.estimate:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def _rates() -> str:
    chosen, means = chosen_rates(), tuning_means()
    rows = [
        [ARMS[arm].words, *(f"{100 * means[arm][rate]:.1f}{' ←' if chosen[arm] == rate else ''}" for rate in RATES)]
        for arm in (*COMPARED, *PAPER)
    ]
    return (
        "Greedy accuracy on 500 validation problems after 100 steps, in percent: means over two seeds. An arrow marks "
        "the rate that the arm ran with.\n\n" + markdown_table(["learning rate", *RATES], rows)
    )


def draw() -> None:
    """Greedy accuracy and pass@64 of each arm, with intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 4.6), layout="constrained")
    outcomes = [(f"{GREEDY} 3", f"{GREEDY} 4+5"), (f"{PASS} 3", f"{PASS} 4+5")]
    titles = ("greedy accuracy", f"{PASS}: at least one of 64 answers is right")
    places = range(len(COMPARED))
    for axes, pair, title in zip(figure.subplots(1, 2, sharey=True), outcomes, titles, strict=True):
        axes.set_title(title, fontsize=10)
        for outcome, marker in zip(pair, "os", strict=True):
            for study, colour, shift in zip(studies(), COLOURS, (-0.12, 0.12), strict=False):
                found = [of_arm(study, arm, outcome) for arm in COMPARED]
                axes.errorbar(
                    [f.estimate for f in found], [place + shift for place in places],
                    xerr=[[f.estimate - f.low for f in found], [f.high - f.estimate for f in found]],
                    fmt=marker, markersize=4, linewidth=1, capsize=2, color=colour,
                    label=f"{PRIMARY[outcome][0].partition(', ')[2]}, {STUDIES[study]} steps",
                )  # fmt: skip
        axes.grid(axis="x", linewidth=0.4)
        axes.set_yticks(list(places), [ARMS[arm].words for arm in COMPARED])
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(FIGURE, dpi=110, facecolor="white", metadata={"Software": None})


def main() -> int:
    chosen = parser(__doc__).parse_args()
    if not chosen.check:
        draw()
    return write({PAGE: below(MARKER, PAGE, tables() + "\n")}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
