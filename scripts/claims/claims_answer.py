"""The answer at the head of docs/claims.md: its figures come from docs/claims/*.csv, its words are written here.

Other data could make the words untrue: read them again then. The answer in short is claims_short.py.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import fmean

from claims_design import FAMILIES
from claims_estimates import holm
from claims_rates import AT_TRAINING, table, unequal
from claims_short import OFTEN, SELDOM, at_most, in_short, lower_in, settings, span, without_filter
from claims_tests import Finding, Shares, first_accuracies, trainings, values

WIDTH = 130


def answer(tests: Sequence[Finding | Shares]) -> str:
    """What stands above the tables; `tests` are all lines of the registered questions."""
    short = "## In short\n\n" + _points(*in_short())
    return "\n\n".join([_head(), _worth(tests), short, _choice(), table(), _limits()])


def _text(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def _points(*points: str) -> str:
    lines = (f"- {' '.join(point.split())}" for point in points)
    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in lines
    )


def _head() -> str:
    rows, count = sum(map(len, trainings().values())), sum(map(len, FAMILIES.values()))
    return "# When does GTPO help, and against whom?\n\n" + _text(f"""
        {rows} runs of models of 167 thousand parameters, on five families of bases (three architectures, two tasks).
        GRPO, GRPO with GTPO's conflict correction, and GTPO ran in {count} settings. Five other methods ran in two of
        these settings, with the correction and without. `docs/claims/registration.md` has the questions, the tests and
        the margin, and says when they were fixed. The csv files of `docs/claims` hold every run of that design. `make
        claims` makes all of them again, CI makes two. The paper's own claims were round one:
        `docs/claims/round_one.md`.""")


def _worth(tests: Sequence[Finding | Shares]) -> str:
    of_study = trainings()
    rows, distinct = sum(map(len, of_study.values())), len({run for runs in of_study.values() for run in runs})
    tested = {run for study, runs in of_study.items() if not study.startswith("greedy_") for run in runs}
    greedy = sum(run in tested for study, runs in of_study.items() if study.startswith("greedy_") for run in runs)
    tiny = set(of_study["path_tiny"])
    again = sum(run not in tiny for run in of_study["greedy_tiny"])
    p_values = [line.p_value for line in tests]
    missing = sum(p < 0.05 for p in p_values)
    left = sum(p < 0.05 for p in holm(p_values))
    return "## What the figures are worth\n\n" + _points(
        f"""**{distinct} of the {rows} runs are different.** {rows - distinct} rows have the seed and every figure of
        training of another row. {greedy} of them test a training greedily that was also tested at temperature 1. In
        the other {rows - distinct - greedy} two variants are one computation. For example, with one update a batch
        GSPO is GRPO, and a filter whose threshold no completion reaches is no filter. No interval counts one training
        twice. `greedy_tiny` repeats trainings of `path_tiny` on another machine; {again} of them round
        differently and count as different.""",
        f"""**Not every learning rate is tuned.** On the paths, and where all methods are compared, each method took the
        best of three rates, by one tuning seed (two for the other methods). Six studies have no tuning of their own:
        `parts`, `thresholds` and `spans` run at GTPO's rate, `presence` and `twice` at the rates tuned for the strict
        format and one update, `end_token` at two fixed rates. In {len(unequal())} of the
        {sum(map(len, FAMILIES.values()))} settings GRPO ran at half of GTPO's rate (see "Learning rates").""",
        f"""**Intervals are 95 % each and not corrected for their number.** Of the {len(tests)} registered lines in
        `docs/claims/tables.md` {missing} miss 0. About {len(tests) / 20:.0f} would do so by chance if
        nothing differed and no two lines shared runs. After Holm's correction for all of them {left or "none"}
        {"do" if left else "does"}. What was looked
        at without a test (the temperature of training, equal rates, greedy tests, groups of settings) is weaker
        evidence than that.""",
    )


def _choice() -> str:
    first = first_accuracies()
    rare, seldom, often = (
        span((100 * first[f][s] for f, s in settings(*shares)), ".0f")
        for shares in ((0.0, SELDOM), (SELDOM, OFTEN), (OFTEN, 1.0))
    )
    without = without_filter()
    correction = "`objective.conflict.enabled: true`"
    return f"""## What to choose

| `gtpo probe-entropy` says | what the runs say |
|---|---|
| no completion is right | no run. Nothing is rewarded then: easier problems, or SFT first |
| {rare} % are right | single seeds decided: compare several |
| {seldom} % | GTPO, and GRPO with {correction}, ended above GRPO at the temperature of training; compare \
greedily before you believe in a better model |
| {often} % | no benefit of GTPO over GRPO showed |
| the filter would leave out a quarter to a third | open |
| the filter would leave out three quarters or more | {lower_in(without)} runs ended lower with it than without: \
`objective.filter.enabled: never`, or a higher threshold |

Other shares were not tried."""


def _limits() -> str:
    tuned = values("tune_json", "accuracy at first")["t1.0.grpo-1.5e-4"][101]
    made, before = (values(study, AT_TRAINING) for study in ("greedy_tiny", "path_tiny"))
    apart = max(abs(fmean(by_seed.values()) - fmean(before[variant].values())) for variant, by_seed in made.items())
    settings_again = len({variant.rsplit(".", 1)[0] for variant in made})
    return "## How far it goes\n\n" + _points(
        """Tiny models, synthetic tasks, 60 to 100 steps of 64 completions, all weights trained. Nobody has run any of
        it at 8 billion parameters; `gtpo sweep` takes the same files on any recipe.""",
        """Two to four seeds a setting. Most single intervals are wider than the margin. *Open* means that the runs do
        not say.""",
        f"""Rates were tuned on bases made by the same commands on another machine, which rounds differently. For `json`
        that gave another base: GRPO's first steps at 1.5e-4 and temperature 1 had {tuned:.2f} right when tuned and
        {first_accuracies()["json"]["t1.0"]:.2f} when compared. `path_tiny` is of the first machine, too. Made
        again on the second, its {settings_again} settings of `greedy_tiny` have mean training accuracies within
        {at_most(apart, 3)}.""",
        """The greedy test was added when the paths had been seen. It was not made for `json`.""",
    )
