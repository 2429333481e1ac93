"""Write docs/claims.md and docs/claims/tables.md from the runs' figures; draw the figure.

    python scripts/claims/write_claims.py             # from docs/claims/*.csv, which `make claims` brings up to date
    python scripts/claims/write_claims.py --check     # the pages are what those files say

claims_tests.py weighs the runs as docs/claims/registration.md says; claims_answer.py has the words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from claims_answer import answer
from claims_design import FAMILIES, METHODS, MIDDLE, ON_PATHS, OTHERS, PLAIN, RATES, Cell
from claims_estimates import mean
from claims_rates import AT_TRAINING
from claims_tests import (
    DATA,
    OUTCOME,
    Finding,
    Shares,
    benefits,
    by_family,
    corrected,
    end_token,
    first_accuracies,
    greedily,
    grows,
    gtpo_against,
    initial_entropies,
    methods,
    over_all,
    parts,
    rates,
    spans,
    thresholds,
    values,
    with_filter,
)

from gtpo_cli.entropy_filter import LN_2
from gtpo_cli.estimators import Interval
from gtpo_cli.report.charts import COLOURS

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))

from written_files import ROOT, parser, write

PAGE = ROOT / "docs" / "claims.md"
TABLES = DATA / "tables.md"
WRITTEN = "<!-- written by scripts/claims/write_claims.py; the words are in scripts/claims/claims_answer.py -->"
FIGURE = DATA / "benefit.png"
GTPO, CORRECTION = ("gtpo", "grpo"), ("grpo_conflict", "grpo")
SHOWN = 0.35  # of the figure: a difference, either way


@dataclass(frozen=True)
class Question:
    """What stands in the tables, and what weighs the runs."""

    name: str
    text: str
    ask: Callable[[], Sequence[Finding | Shares]]


QUESTIONS = (
    Question("Q1", "GTPO over GRPO, change per nat of initial entropy", partial(grows, *GTPO)),
    Question("Q1'", "the same, change from never right at first to always", partial(grows, *GTPO, on=first_accuracies)),
    Question("Q2", "the conflict correction over GRPO, change per nat", partial(grows, *CORRECTION)),
    Question(
        "Q2'", "the same, change from never right at first to always", partial(grows, *CORRECTION, on=first_accuracies)
    ),
    Question("Q3a", "GTPO over GRPO", partial(by_family, *GTPO)),
    Question("Q3b", "the conflict correction over GRPO", partial(by_family, *CORRECTION)),
    Question("Q4", "GTPO over GRPO with the correction", partial(over_all, "gtpo", "grpo_conflict")),
    Question("Q5", "the filter, where it acts while accuracy rises", with_filter),
    Question("Q6a", "other thresholds against ln 2", partial(thresholds, ("tiny", "qwen2", "mistral"))),
    Question("Q6b", "the filter always on, where the rule has it off", partial(thresholds, ("words",))),
    Question("Q7", "other spans and alignments against the paper's", spans),
    Question("Q8", "each part of GTPO", lambda: [*parts("tiny", "t1.8"), *parts("words", "w100")]),
    Question("Q9a", "the correction on each method", corrected),
    Question("Q9c", "the correction, with two updates a batch", partial(corrected, ("tiny",), twice=True)),
    Question("Q9b", "GTPO over each method", gtpo_against),
    Question("Q10", "runs that forget to stop", end_token),
)


# -- the pages ---------------------------------------------------------------------------------------------------------


def page() -> str:
    """docs/claims.md."""
    tests = [line for question in QUESTIONS for line in question.ask()]
    return _joined(WRITTEN, answer(tests), results())


def results() -> str:
    """What stands below the answer."""
    return _joined(_figure_text(), _summary(), _method_table())


def tables() -> str:
    """The page of every interval."""
    title = "# Round two: every interval, and the rates\n\nThe answer is in `docs/claims.md`."
    shown = (_answers(), _paths(), _sharpening(), _training_temperature(), _against_corrected(), _presence(), _rates())
    return _joined(title, *shown)


def _joined(*parts: str) -> str:
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _figure_text() -> str:
    return (
        "## Benefit and initial entropy\n\n"
        "Each point is a setting: by how much the method is above GRPO, the mean over seeds with Student's 95 %\n"
        f"interval, both at the rates that tuning chose. Intervals beyond {SHOWN} are cut: single seeds collapse.\n\n"
        f"![benefit against initial entropy](claims/{FIGURE.name})"
    )


def _summary() -> str:
    lines = [
        "## The registered questions",
        "",
        "What each test found: the one interval that answers it, or those that are not open. Differences are of test",
        "accuracy at temperature 1, paired by seed, with 95 % intervals, not corrected for their number; the margin is",
        '0.02. Both sides run at the rates that tuning chose, which differ where "Learning rates" says so. Q10 counts',
        "matched runs, those with the correction among them.",
        "`docs/claims/registration.md` has each test in full, `docs/claims/tables.md` every interval.",
        "",
        "| | question | found |",
        "|---|---|---|",
    ]
    for question in QUESTIONS:
        lines.append(f"| {question.name} | {question.text} | {_found(question.ask())} |")
    return "\n".join(lines)


def _found(lines: Sequence[Finding | Shares]) -> str:
    """The first line where it is over all others, else those that decide something, and how many do not."""
    first = lines[0]
    if isinstance(first, Finding) and first.is_overall:
        return f"{_shown(first.found)}: {first.verdict if first.verdict == 'open' else f'**{first.verdict}**'}"
    decided = []
    for line in lines:
        if isinstance(line, Finding) and line.verdict != "open":
            decided.append(f"{line.what} {line.found.estimate:+.3f} **{line.verdict}**")
        elif isinstance(line, Shares) and line.is_apart:
            decided.append(f"{line.low} {line.at_low}, {line.high} {line.at_high} of {line.pairs} **apart**")
    left = len(lines) - len(decided)
    return "; ".join([*decided, *([f"{left} open"] if left else [])])


def _answers() -> str:
    lines = [
        "## Every interval",
        "",
        "Differences of test accuracy at temperature 1, paired by seed, with 95 % intervals; n counts seeds, settings",
        "or methods, whichever the registration says.",
        "",
        "| | what | against what | n | difference | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for question in QUESTIONS:
        for number, line in enumerate(question.ask()):
            first = (question.name, question.text) if number == 0 else ("", "")
            lines.append(f"| {first[0]} | {first[1]} | {_cells(line)} |")
    return "\n".join(lines)


def _cells(line: Finding | Shares) -> str:
    if isinstance(line, Shares):
        counts = f"{line.at_low} and {line.at_high} of {line.pairs} runs, p {line.p_value:.3f}"
        return f"{line.low}, {line.high} | {line.pairs} | {counts} | {'**apart**' if line.is_apart else 'open'}"
    said = line.verdict if line.verdict == "open" else f"**{line.verdict}**"
    return f"{line.what} | {line.count} | {_shown(line.found)} | {said}"


def _shown(found: Interval) -> str:
    return f"{found.estimate:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def _method_table() -> str:
    lines = [
        "## The methods, with the correction and without",
        "",
        "Test accuracy at temperature 1, and in brackets accuracy at the temperature of training: means over seeds,",
        "each method at the learning rate that tuning chose. With one update a batch GSPO is GRPO",
        "(its figures differ where rate or machine did), and RLOO nearly Dr. GRPO.",
        "",
        f"| | {' | '.join(f'`{family}`, {MIDDLE[family]} | with the correction' for family in MIDDLE)} |",
        "|---|" + "---|---|" * len(MIDDLE),
    ]
    chosen, _ = rates()
    for method in (*PLAIN, "gtpo"):
        cells = []
        for family in MIDDLE:
            test, warm = methods(family), methods(family, AT_TRAINING)
            for name in (method, f"{method}_conflict"):
                cells.append("")
                if name in test:
                    rate = chosen[family, MIDDLE[family], name]
                    cells[-1] = f"{fmean(test[name].values()):.3f} ({fmean(warm[name].values()):.3f}) at {rate}"
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _presence() -> str:
    lines = [
        "## The `presence` format",
        "",
        "The methods again where tags need only be there: test accuracy, and in brackets accuracy at the temperature",
        "of training, means over two seeds. Looked at, not tested.",
        "",
        f"| | {' | '.join(f'`{family}`, {setting}' for family, setting in MIDDLE.items())} |",
        "|---|" + "---|" * len(MIDDLE),
    ]
    for method in METHODS:
        cells = []
        for family, setting in MIDDLE.items():
            test, warm = (
                values(f"presence_{family}", name).get(f"{setting}.{method}") for name in (OUTCOME, AT_TRAINING)
            )
            cells.append(f"{fmean(test.values()):.3f} ({fmean(warm.values()):.3f})" if test and warm else "")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rates() -> str:
    lines = [
        "## Learning rates",
        "",
        "What tuning chose; in brackets the test accuracy that it saw at 1.5e-4, 3e-4 and 6e-4 in the setting itself.",
        "",
        "| | GRPO | with the correction | GTPO |",
        "|---|---|---|---|",
    ]
    chosen, tuned = rates()
    for family, settings in FAMILIES.items():
        for setting in settings:
            cells = [_rate(chosen, tuned, (family, setting, method)) for method in ON_PATHS]
            lines.append(f"| `{family}` {setting} | {' | '.join(cells)} |")
    lines += ["", f"| | {' | '.join(f'`{f}` {s}' for f, s in MIDDLE.items())} |", "|---|" + "---|" * len(MIDDLE)]
    for method in OTHERS:
        cells = [_rate(chosen, tuned, (family, setting, method)) for family, setting in MIDDLE.items()]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rate(chosen: Mapping[Cell, str], tuned: Mapping[Cell, Mapping[str, float]], cell: Cell) -> str:
    return f"{chosen[cell]} ({', '.join(f'{tuned[cell][rate]:.2f}' for rate in RATES)})"


def _training_temperature() -> str:
    asked = {
        "GTPO over GRPO, per nat": grows(*GTPO, AT_TRAINING),
        "GTPO over GRPO": by_family(*GTPO, AT_TRAINING),
        "the correction over GRPO, per nat": grows(*CORRECTION, AT_TRAINING),
        "the correction over GRPO": by_family(*CORRECTION, AT_TRAINING),
        "GTPO over GRPO with the correction": over_all("gtpo", "grpo_conflict", AT_TRAINING),
    }
    return _looked_at(
        "At the temperature of training",
        "The same in accuracy at the temperature of training, over the last tenth of the steps, at the rates that\n"
        "tuning chose: looked at, not tested.",
        asked,
    )


def _against_corrected() -> str:
    return _looked_at(
        "GTPO against each method with the correction",
        "Test accuracy at temperature 1, GTPO's rate first: looked at, not tested.",
        {"GTPO over the method with the correction": gtpo_against(with_correction=True)},
    )


def _paths() -> str:
    lines = [
        "## The paths",
        "",
        "Means over seeds. Right at first: GRPO's first tenth of the steps, at the temperature of training.",
        "",
        "| | `<H>_ini`, nats | right at first | learning rates: GRPO, with the correction, GTPO | test accuracy "
        "| at the temperature of training | entropy at the end | GTPO filters |",
        "|---|---|---|---|---|---|---|---|",
    ]
    entropies, first, (chosen, _) = initial_entropies(), first_accuracies(), rates()
    for family, settings in FAMILIES.items():
        runs = {name: values(f"path_{family}", name) for name in (OUTCOME, AT_TRAINING, "entropy", "filtered")}
        for setting in settings:
            test, warm, entropy = (
                ", ".join(f"{fmean(runs[name][f'{setting}.{method}'].values()):.3f}" for method in ON_PATHS)
                for name in (OUTCOME, AT_TRAINING, "entropy")
            )
            filtered = 100 * fmean(runs["filtered"][f"{setting}.gtpo"].values())
            at = ", ".join(chosen[family, setting, method] for method in ON_PATHS)
            start = f"{entropies[family][setting]:.3f} | {first[family][setting]:.3f} | {at}"
            lines.append(f"| `{family}` {setting} | {start} | {test} | {warm} | {entropy} | {filtered:.1f} % |")
    return "\n".join(lines)


def _sharpening() -> str:
    return _looked_at(
        "How much of it is sharpening?",
        "Some runs of the paths again, at the same rates, tested greedily: a sharper distribution alone gains nothing\n"
        "then. Looked at, not tested, and added when those paths had been seen.",
        {"GTPO over GRPO": greedily(*GTPO), "the correction over GRPO": greedily(*CORRECTION)},
    )


def _looked_at(title: str, text: str, asked: Mapping[str, Sequence[Finding]]) -> str:
    lines = [f"## {title}", "", text, "", "| | against what | n | difference |", "|---|---|---|---|"]
    for what, found in asked.items():
        for number, line in enumerate(found):
            lines.append(f"| {what if number == 0 else ''} | {line.what} | {line.count} | {_shown(line.found)} |")
    return "\n".join(lines)


# -- the figure --------------------------------------------------------------------------------------------------------


def draw() -> None:
    """The benefit of GTPO, and of the correction alone, against initial entropy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 7.0), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    entropy = initial_entropies()
    comparisons = ((GTPO, "GTPO over GRPO"), (CORRECTION, "GRPO with the conflict correction over GRPO"))
    figures = ((OUTCOME, "test accuracy, temperature 1"), (AT_TRAINING, "accuracy, temperature of training"))
    for panel, (_, title) in zip(axes[0], comparisons, strict=True):
        panel.set_title(title, fontsize=10)
    for row, (measured, outcome) in zip(axes, figures, strict=True):
        for panel, ((more, less), _) in zip(row, comparisons, strict=True):
            panel.axhline(0.0, color="black", linewidth=0.8)
            panel.axvline(LN_2, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
            panel.annotate(
                "ln 2", (LN_2, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -10), textcoords="offset points"
            )
            for colour, family in zip(COLOURS, FAMILIES, strict=False):
                found = [(entropy[family][s], mean(d)) for s, d in benefits(family, more, less, measured).items()]
                y = [interval.estimate for _, interval in found]
                ends = [[i.estimate - i.low for _, i in found], [i.high - i.estimate for _, i in found]]
                panel.errorbar(
                    [nats for nats, _ in found], y, yerr=ends, fmt="o-", markersize=4, linewidth=1, capsize=2,
                    color=colour, label=family,
                )  # fmt: skip
        row[0].set_ylabel(f"difference of {outcome}", fontsize=9)
    for panel in axes[1]:
        panel.set_xlabel("initial entropy <H>_ini, nats")
    axes[0][0].set_ylim(-SHOWN, SHOWN)
    axes[1][0].legend(frameon=False, fontsize=8, loc="lower left")
    figure.savefig(FIGURE, dpi=110, facecolor="white", metadata={"Software": None})


def main() -> int:
    chosen = parser(__doc__).parse_args()
    if not chosen.check:
        draw()
    return write({PAGE: page(), TABLES: tables()}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
