"""Write the tables of the third round from its runs, and draw its figures.

    python scripts/claims/write_page.py             # from docs/claims/round_three/*.csv
    python scripts/claims/write_page.py --check     # the pages hold what those files say

docs/claims.md has one of the tables; its words are written by hand, and tests/unit/sweep/test_claims.py holds their
figures against the files. docs/claims/round_three_tables.md has the others.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

from analysis import (
    LENGTHS,
    PRIMARY,
    QUESTIONS,
    RECORDS,
    Difference,
    Pair,
    Variant,
    at_grpos_entropy,
    differences,
    of_variant,
    paired,
    runs_of,
    value,
    whole_seeds,
)
from arms import ARMS
from claim_runs import CURVES, read
from estimates import mean, points, share, verdict
from outcomes import KS
from round_three import COMPARED, PAPER, RATES, chosen_rates, tuning_means
from second_subject import REAL_ARMS

from gtpo_cli.pages.run_charts import COLOURS
from gtpo_cli.text import markdown_table

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))

from written_files import ROOT, between, parser, write

PAGE, TABLES = ROOT / "docs" / "claims.md", ROOT / "docs" / "claims" / "round_three_tables.md"
START, END = "<!-- written by scripts/claims/write_page.py -->", "<!-- end -->"
REAL_PAIRS = (("gtpo", "grpo"), ("correction", "grpo"), ("correction", "uniform"), ("uniform", "grpo"))
BASE = Variant("base", "base")
ASKED = {
    "Q1": "Does GTPO teach what GRPO does not?",
    "Q2": "Does the correction alone?",
    "Q3": "Is it where the weight goes?",
    "Q4": "Or that wrong completions weigh less?",
    "Q5": "Is GTPO more than its correction?",
    "Q6": "Is another method as good?",
    "Q7": "Do older samples cost anything?",
    "Q8": "And the paper's other comparisons?",
}


def words_of(variant: Variant) -> str:
    """What the page calls a variant."""
    return ARMS[variant.arm].words + (f", K = {variant.generation}" if variant.generation > 1 else "")


# -- tables ------------------------------------------------------------------------------------------------------------


def table_of_arms(study: str) -> str:
    """All arms of a study, and the base that they started from."""
    last = ["temperature 1", "at GRPO's entropy", "maj@64", "entropy"]
    base = runs_of(BASE)["1"]
    rows = [
        [
            "before training",
            *(f"{100 * value(base, outcome):.1f}" for outcome in (*PRIMARY, "pass@1 3")),
            "",
            f"{100 * value(base, 'maj@64 3'):.1f}",
            f"{value(base, 'entropy t1.0'):.3f}",
        ]
    ]
    for arm in COMPARED:
        variant = Variant(study, arm)
        rows.append(
            [
                ARMS[arm].words,
                *(share(of_variant(variant, outcome)) for outcome in (*PRIMARY, "pass@1 3")),
                share(at_grpos_entropy(study, arm)),
                share(of_variant(variant, "maj@64 3")),
                f"{of_variant(variant, 'entropy t1.0').estimate:.3f}",
            ]
        )
    return markdown_table([f"after {LENGTHS[study]} steps", *PRIMARY.values(), *last], rows).strip()


def table_of_questions() -> str:
    rows = []
    for question in QUESTIONS:
        by_pair: dict[Pair, list[Difference]] = {}
        for difference in differences(question):
            by_pair.setdefault(difference.pair, []).append(difference)
        for pair, own in by_pair.items():
            cells = [f"{points(d.found)} {d.verdict}{'*' if d.p < 0.05 else ''}" for d in own]
            names = f"{words_of(pair.more)} - {words_of(pair.less)}"
            rows.append([ASKED[question], names, str(LENGTHS.get(pair.more.study, 100)), *cells])
    return markdown_table(["question", "difference", "steps", *PRIMARY.values()], rows).strip()


def table_of_rates() -> str:
    chosen, means = chosen_rates(), tuning_means()
    rows = [
        [ARMS[arm].words, *(f"{100 * means[arm][rate]:.1f}{' ←' if chosen[arm] == rate else ''}" for rate in RATES)]
        for arm in (*COMPARED, *PAPER)
    ]
    return markdown_table(["learning rate", *RATES], rows).strip()


def table_of_ages() -> str:
    rows = []
    for arm in ("grpo", "gtpo"):
        for generation in (1, 4, 16):
            variant = Variant("short" if generation == 1 else "age", arm, generation)
            cells = [share(of_variant(variant, outcome)) for outcome in (*PRIMARY, "pass@1 3")]
            rows.append([ARMS[arm].words, str(generation), *cells])
    return markdown_table(["", "steps a generation, K", *PRIMARY.values(), "temperature 1"], rows).strip()


def table_of_paper(lengths: str) -> str:
    """pass@k and maj@k, as the paper's tables have them."""
    outcomes = [f"pass@{k}" for k in KS] + [f"maj@{k}" for k in KS if k > 1]
    variants = (Variant("short", "gtpo"), Variant("short", "grpo"), *(Variant("paper", arm) for arm in PAPER))
    base = runs_of(BASE)["1"]
    rows = [["before training", *(f"{100 * value(base, f'{outcome} {lengths}'):.1f}" for outcome in outcomes)]]
    rows += [
        [words_of(variant), *(share(of_variant(variant, f"{outcome} {lengths}")) for outcome in outcomes)]
        for variant in variants
    ]
    return markdown_table(["", *outcomes], rows).strip()


REAL = {"greedy": "greedy", "pass@16": "pass@16", "pass@1": "temperature 1", "maj@16": "maj@16"}


def table_of_real() -> str:
    """The second subject: means over its seeds, and the registered differences."""
    (start,) = read(RECORDS / "real_start.csv")
    rows = [["after SFT", *(f"{100 * float(start[column]):.1f}" for column in REAL), f"{float(start['entropy']):.3f}"]]
    for arm in REAL_ARMS:
        variant = Variant("real", arm)
        means = [share(of_variant(variant, column)) for column in REAL]
        rows.append([ARMS[arm].words, *means, f"{of_variant(variant, 'entropy').estimate:.3f}"])
    for more, less in REAL_PAIRS:
        pair = Pair(Variant("real", more), Variant("real", less))
        found = [mean(paired(pair, column)) for column in REAL]
        verdicts = [f"{points(each)} {verdict(each)}" for each in found]
        rows.append([f"{ARMS[more].words} - {ARMS[less].words}", *verdicts, ""])
    return markdown_table(["", *REAL.values(), "entropy"], rows).strip()


def of_second_subject() -> str:
    """Its section, or nothing until two seeds are whole."""
    seeds = len(whole_seeds(["real"]))
    if seeds < 2:
        return ""
    return f"""## The second subject

SmolLM2-135M-Instruct on word problems, {seeds} seeds: 40 steps of SFT, then 25 steps of each arm. Greedy answers of 240
problems, 16 sampled answers of 60. The tests have wordings that training never sees.

{table_of_real()}

"""


def tables() -> str:
    seeds = {study: len(whole_seeds([study])) for study in LENGTHS}
    return f"""# Every table of round three

{START}

`scripts/claims/write_page.py` writes this page from `docs/claims/round_three/*.csv`. `docs/claims.md` explains the
terms. Tables have means over seeds in percent, with the half width of the 95 % interval. Entropy is in nats a token.

## Every arm

"Temperature 1", "at GRPO's entropy", "maj@64" and "entropy" are of three operations. After 100 steps,
{seeds["short"]} seeds:

{table_of_arms("short")}

After 400 steps, {seeds["long"]} seeds:

{table_of_arms("long")}

![learning curves](round_three/curves.png)

## The registered questions

Differences in percentage points, paired by seed, with 95 % intervals. The margin is 2 points. A star means that p is
below 0.05 after Holm's correction over all tests of the same two arms.

{table_of_questions()}

## Age of the samples

`rollout.steps_per_generation` K: one generation serves K steps. After 100 steps:

{table_of_ages()}

## As the paper's tables have it

After 100 steps. SFT learned from as many worked solutions as the others sampled completions. Three operations:

{table_of_paper("3")}

Four and five operations (their mean):

{table_of_paper("4+5")}

{of_second_subject()}## Learning rates

Greedy accuracy on 500 validation problems after 100 steps: means over two seeds. An arrow marks the rate that the arm
ran with.

{table_of_rates()}
"""


# -- figures -----------------------------------------------------------------------------------------------------------


def draw_arms(file: Path) -> None:
    """Greedy accuracy and pass@64 of each arm, with intervals; a dotted line for the base."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.8), layout="constrained")
    outcomes = [("greedy 3", "greedy 4+5"), ("pass@64 3", "pass@64 4+5")]
    titles = ("greedy accuracy", "pass@64: at least one of 64 answers is right")
    places, base = range(len(COMPARED)), runs_of(BASE)["1"]
    styles = {("short", 0): "o", ("long", 0): "o", ("short", 1): "s", ("long", 1): "s"}
    for axes, pair, title in zip(figure.subplots(1, 2, sharey=True), outcomes, titles, strict=True):
        axes.set_title(title, fontsize=10)
        for i, outcome in enumerate(pair):
            for study, colour, shift in zip(LENGTHS, COLOURS, (-0.12, 0.12), strict=False):
                found = [of_variant(Variant(study, arm), outcome) for arm in COMPARED]
                axes.errorbar(
                    [f.estimate for f in found], [place + shift for place in places],
                    xerr=[[f.estimate - f.low for f in found], [f.high - f.estimate for f in found]],
                    fmt=styles[study, i], markersize=4, linewidth=1, capsize=2, color=colour,
                    mfc=colour if i == 0 else "white",
                    label=f"{('3 operations', '4 and 5 operations')[i]}, {LENGTHS[study]} steps",
                )  # fmt: skip
            axes.axvline(
                value(base, outcome), linestyle=(":", "--")[i], linewidth=1, color="#888888",
                label=f"{('3 operations', '4 and 5 operations')[i]}, before training",
            )  # fmt: skip
        axes.set_xlim(0, 1.02)
        axes.grid(axis="x", linewidth=0.4)
        axes.set_yticks(list(places), [ARMS[arm].words for arm in COMPARED])
    axes.invert_yaxis()
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(file, dpi=110, facecolor="white", metadata={"Software": None})


def draw_curves(file: Path) -> None:
    """Three accuracies on 50 validation problems along the runs of 400 steps, means over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    start, looks = read(RECORDS / "base_curves.csv")[0], read(RECORDS / "long_curves.csv")
    for axes, name in zip(figure.subplots(1, 3), CURVES, strict=True):
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("steps")
        for arm, colour, style in zip(COMPARED, (*COLOURS, "#000000"), ("-", "--", "-.", ":") * 2, strict=False):
            own = [look for look in looks if look["run"].startswith(f"long.{arm}.")]
            steps = sorted({int(look["step"]) for look in own})
            means = [fmean(float(look[name]) for look in own if int(look["step"]) == step) for step in steps]
            axes.plot(
                [0, *steps], [float(start[name]), *means], style, color=colour, linewidth=1.2, label=ARMS[arm].words
            )
        axes.grid(linewidth=0.4)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(file, dpi=110, facecolor="white", metadata={"Software": None})


def main() -> int:
    chosen = parser(__doc__).parse_args()
    if not chosen.check:
        draw_arms(RECORDS / "arms.png")
        draw_curves(RECORDS / "curves.png")
    return write({PAGE: between(START, END, PAGE, table_of_arms("long")), TABLES: tables()}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
