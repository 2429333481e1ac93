"""Write the tables of the study of rules from its runs, and draw its figure.

    python scripts/claims/write_page.py             # from docs/claims/rules/*.csv
    python scripts/claims/write_page.py --check     # the page holds what those files say

docs/claims/rules_tables.md has every table, docs/claims.md the first of them; its words are written by hand. Tests are
those of docs/claims/rules_registration.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import rules
from claim_runs import read
from estimates import mean, p_value, points, share, verdict
from rules import ARMS, CONTROLLED, CONTROLS, RATES, SEEDS
from scipy.stats import binomtest

from gtpo_cli.estimators import Interval, holm
from gtpo_cli.text import markdown_table

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))

from written_files import ROOT, between, parser, write

PAGE, TABLES = ROOT / "docs" / "claims.md", ROOT / "docs" / "claims" / "rules_tables.md"
START, END = "<!-- written by scripts/claims/write_page.py -->", "<!-- end -->"
TASKS = tuple(task.rpartition("/")[2] for task in rules.HARDER)
Row = dict[str, str]


class Outcome(NamedTuple):
    """A column of the runs' files without its task: `measure`, at the levels of training or the harder ones."""

    measure: str
    level: str  # "" or "harder "

    def of(self, row: Row, tasks: Sequence[str] = TASKS) -> float:
        """The mean over tasks."""
        return fmean(float(row[f"{self.measure} {self.level}{task}"]) for task in tasks)

    def __str__(self) -> str:
        return self.level + {"pass@1": "temperature 1"}.get(self.measure, self.measure)


PRIMARY = tuple(Outcome(measure, level) for level, measure in product(("", "harder "), ("greedy", "pass@1", "pass@64")))


class Runs:
    """What the files hold."""

    def __init__(self) -> None:
        self.rates = rules.chosen_rates()
        chosen = rules.finalists()
        ordered = [
            name for arm in ARMS for name in (arm, *(f"{arm}_{control}" for control in CONTROLS)) if name in chosen
        ]
        self.finalists = {arm: chosen[arm] for arm in ordered}  # controls stand under their rule
        (self.base,) = read(rules.RECORDS / "base.csv")
        self.screen = read(rules.RECORDS / "screen.csv")
        self._by_seed = {study: self._read(study) for study in ("final", "same_rate", "hot")}
        self.seeds = self.whole_seeds("final", self.finalists)

    @staticmethod
    def _read(study: str) -> dict[tuple[str, str], Row]:
        return {(row["arm"], row["seed"]): row for row in read(rules.RECORDS / f"{study}.csv")}

    @property
    def methods(self) -> list[str]:
        """The finalists without controls."""
        return [arm for arm in self.finalists if arm in ARMS]

    def whole_seeds(self, study: str, arms: Iterable[str]) -> list[str]:
        """The seeds that count: those in which each of these arms is done."""
        done = self._by_seed[study]
        return [seed for seed in map(str, SEEDS) if all((arm, seed) in done for arm in arms)]

    def of(self, arm: str, study: str = "final") -> list[Row]:
        """An arm's runs, in the order of the seeds that count."""
        seeds = self.seeds if study == "final" else self.whole_seeds(study, self.methods)
        return [self._by_seed[study][arm, seed] for seed in seeds]

    @property
    def at_same_rate(self) -> list[Row]:
        """GRPO's runs at SAME_RATE in the order of the seeds that count; none before all of them are done."""
        done = self._by_seed["same_rate"]
        return [done["grpo", seed] for seed in self.seeds] if all(("grpo", seed) in done for seed in self.seeds) else []

    def values(self, arm: str, outcome: Outcome, tasks: Sequence[str] = TASKS) -> list[float]:
        return [outcome.of(row, tasks) for row in self.of(arm)]

    def paired(self, more: str, less: str, outcome: Outcome, tasks: Sequence[str] = TASKS) -> list[float]:
        """The difference of each seed."""
        pairs = zip(self.values(more, outcome, tasks), self.values(less, outcome, tasks), strict=True)
        return [a - b for a, b in pairs]


# -- the registered tests ----------------------------------------------------------------------------------------------


class Test(NamedTuple):
    """The difference `more` minus `less`, paired by seed. `p`: corrected over all tests of the question."""

    more: str
    less: str
    outcome: Outcome
    found: Interval
    p: float

    @property
    def better(self) -> bool:
        return verdict(self.found) == "better" and self.p < 0.05


def rules_beside_grpo(runs: Runs) -> list[tuple[str, str]]:
    """R1: does a rule teach more than GRPO?"""
    return [(arm, "grpo") for arm in runs.methods if arm != "grpo"]


def rules_beside_controls(runs: Runs) -> list[tuple[str, str]]:
    """R2: is it its tokens?"""
    weigh = [arm for arm in runs.finalists if arm in CONTROLLED]
    return [(arm, f"{arm}_{control}") for arm, control in product(weigh, CONTROLS)]


def tested(runs: Runs, pairs: Sequence[tuple[str, str]]) -> list[Test]:
    """Every primary outcome of each pair, with Holm's correction over all of them."""
    samples = [(*pair, outcome, runs.paired(*pair, outcome)) for pair, outcome in product(pairs, PRIMARY)]
    p_values = holm([p_value(sample) for *_, sample in samples])
    return [
        Test(more, less, outcome, mean(sample), p)
        for (more, less, outcome, sample), p in zip(samples, p_values, strict=True)
    ]


def teach_more(runs: Runs) -> dict[str, list[Outcome]]:
    """The rules that teach more than GRPO, as registered: better in these outcomes, worse in none."""
    found: dict[str, list[Outcome]] = {}
    tests = tested(runs, rules_beside_grpo(runs))
    for arm, _ in rules_beside_grpo(runs):
        own = [test for test in tests if test.more == arm]
        if any(test.better for test in own) and all(verdict(test.found) != "worse" for test in own):
            found[arm] = [test.outcome for test in own if test.better]
    return found


def by_their_tokens(runs: Runs) -> dict[str, list[Outcome]]:
    """Those of `teach_more` whose tokens are the reason: better than both controls in that outcome."""
    tests = tested(runs, rules_beside_controls(runs))
    found = {}
    for arm, outcomes in teach_more(runs).items():
        own = [
            outcome
            for outcome in outcomes
            if sum(test.better for test in tests if (test.more, test.outcome) == (arm, outcome)) == len(CONTROLS)
        ]
        if own:
            found[arm] = own
    return found


# -- tables ------------------------------------------------------------------------------------------------------------


def table_of_arms(runs: Runs) -> str:
    """Every finalist after its last step, and the model before training."""
    rows = [["before training", "", *(f"{100 * outcome.of(runs.base):.1f}" for outcome in PRIMARY), "", ""]]
    for arm, rate in runs.finalists.items():
        ends = ("entropy/mean", "completions/length_mean")
        entropy, length = (fmean(float(row[column]) for row in runs.of(arm)) for column in ends)
        means = [share(mean(runs.values(arm, outcome))) for outcome in PRIMARY]
        rows.append([f"`{arm}`", rate, *means, f"{entropy:.3f}", f"{length:.1f}"])
    return markdown_table(["", "rate", *map(str, PRIMARY), "entropy", "length"], rows).strip()


def table_of_tests(runs: Runs, pairs: Sequence[tuple[str, str]]) -> str:
    rows, tests = [], tested(runs, pairs)
    for more, less in pairs:
        own = [test for test in tests if (test.more, test.less) == (more, less)]
        cells = [f"{points(test.found)} {verdict(test.found)}{'*' if test.p < 0.05 else ''}" for test in own]
        rows.append([f"`{more}` - `{less}`", *cells])
    return markdown_table(["difference", *map(str, PRIMARY)], rows).strip()


def table_of_tasks(runs: Runs) -> str:
    """Differences from GRPO in each task, greedily and at temperature 1; nothing here is tested."""
    shown = [(outcome, task) for outcome in PRIMARY if outcome.measure != "pass@64" for task in TASKS]
    rows = []
    for arm in (arm for arm in runs.finalists if arm != "grpo"):
        cells = [points(mean(runs.paired(arm, "grpo", outcome, [task]))) for outcome, task in shown]
        rows.append([f"`{arm}`", *cells])
    return markdown_table(["minus `grpo`", *(f"{outcome}, {task}" for outcome, task in shown)], rows).strip()


def table_of_same_rate(runs: Runs) -> str:
    """Rules beside GRPO at their own rate, and GRPO beside itself at its best one."""
    slow = {outcome: [outcome.of(row) for row in runs.at_same_rate] for outcome in PRIMARY}
    arms = [arm for arm in runs.methods if runs.finalists[arm] == rules.SAME_RATE]
    rows = [["`grpo`", *(share(mean(slow[outcome])) for outcome in PRIMARY)]]
    for arm in arms:
        found = [mean([a - b for a, b in zip(runs.values(arm, o), slow[o], strict=True)]) for o in PRIMARY]
        rows.append([f"`{arm}` - `grpo`", *(f"{points(one)} {verdict(one)}" for one in found)])
    found = [mean([a - b for a, b in zip(slow[o], runs.values("grpo", o), strict=True)]) for o in PRIMARY]
    best = runs.finalists["grpo"]
    rows.append([f"`grpo` - `grpo` at {best}", *(f"{points(one)} {verdict(one)}" for one in found)])
    return markdown_table([f"at {rules.SAME_RATE}", *map(str, PRIMARY)], rows).strip()


def table_of_rates(runs: Runs) -> str:
    """The screen: greedy accuracy on validation problems."""
    rows = []
    for arm in ARMS:
        means = {
            rate: fmean(float(row["greedy"]) for row in runs.screen if (row["arm"], row["rate"]) == (arm, rate))
            for rate in RATES
        }
        rows.append(
            [f"`{arm}`", *(f"{100 * m:.1f}{' ←' if runs.rates[arm][0] == rate else ''}" for rate, m in means.items())]
        )
    return markdown_table(["learning rate", *RATES], rows).strip()


def table_of_hot(runs: Runs) -> str:
    """R3: which rules survive a rate that is too high, and what that costs."""
    rows = []
    for arm in runs.methods:
        hot = runs.of(arm, "hot")
        lost = [float(row["train/strict_format_rate"]) < 0.5 for row in hot]
        low, high = binomtest(sum(lost), len(lost)).proportion_ci(method="wilson")
        found = f"{sum(lost)} of {len(lost)} ({100 * low:.0f} to {100 * high:.0f} %)"
        greedy = share(mean([float(row["greedy"]) for row in hot]))
        rows.append([f"`{arm}`", found, greedy, f"{100 * runs.rates[arm][1]:.1f}"])
    return markdown_table(["", "lost the format", f"greedy at {rules.HOT}", "at its best rate"], rows).strip()


def tables(runs: Runs) -> str:
    return f"""# Every table of the study of rules

`scripts/claims/write_page.py` writes this page from `docs/claims/rules/*.csv`.
`docs/claims/rules_registration.md` says what was fixed before the runs, and `docs/claims.md` explains the terms.
Accuracies are in percent, differences in points.

{of_final(runs)}{of_same_rate(runs)}{of_hot(runs)}## Learning rates

{of_screen(runs)}
"""


def of_screen(runs: Runs) -> str:
    return f"""Greedy accuracy on 300 validation problems of each task after 100 steps: means over two seeds. An arrow
marks the best rate of an arm.

{table_of_rates(runs)}"""


def of_final(runs: Runs) -> str:
    """Its sections, or nothing until two seeds are whole."""
    if len(runs.seeds) < 2:
        return ""
    return f"""Each is the mean over three tasks, with Student's 95 % interval over {len(runs.seeds)} seeds.
"Temperature 1" and pass@64 ask 40 problems of each task 64 times. Entropy, in nats a token, and length, in tokens, are
of the last ten steps.

## Every arm that got all seeds

{table_of_arms(runs)}

![differences from GRPO](rules/differences.png)

## Does a rule teach more than GRPO?

The margin is 2 points. A star means that p is below 0.05 after Holm's correction over all tests of this table.

{table_of_tests(runs, rules_beside_grpo(runs))}

## Is it its tokens?

`_even`: the weights of the rule, spread evenly over each completion. `_random`: the same weights at random tokens.

{table_of_tests(runs, rules_beside_controls(runs))}

## Task by task

Differences from GRPO; nothing here is corrected for the number of comparisons.

{table_of_tasks(runs)}

"""


def of_same_rate(runs: Runs) -> str:
    """Its section, or nothing until it is whole."""
    if not runs.at_same_rate:
        return ""
    return f"""## The rate or the rule?

Exploratory: amendment 8 was made after six seeds had been seen, and nothing here is corrected for the number of
comparisons.

{table_of_same_rate(runs)}

"""


def of_hot(runs: Runs) -> str:
    """Its section, or nothing until a seed is whole."""
    seeds = len(runs.whole_seeds("hot", runs.methods))
    if not seeds:
        return ""
    return f"""## A rate that is too high

{seeds} seeds at {rules.HOT}, on the validation problems, with Wilson's interval. A run lost the format if less than
half of the completions of its last ten steps have it. "At its best rate" is of the two seeds of the screen.

{table_of_hot(runs)}

"""


def draw_differences(runs: Runs, file: Path) -> None:
    """Differences from GRPO with intervals, one panel a primary outcome; controls are grey."""
    from matplotlib.figure import Figure

    arms = [arm for arm in runs.finalists if arm != "grpo"]
    places = range(len(arms))
    figure = Figure(figsize=(9.6, 1.2 + 0.5 * len(arms)), layout="constrained")
    panels = figure.subplots(2, 3, sharey=True)
    for axes, outcome in zip(panels.flat, PRIMARY, strict=True):
        for place, arm in enumerate(arms):
            found = mean(runs.paired(arm, "grpo", outcome))
            axes.errorbar(
                100 * found.estimate, place, xerr=100 * (found.high - found.estimate), fmt="o",
                color="#1f77b4" if arm in ARMS else "#777777", markersize=3, linewidth=1, capsize=2,
            )  # fmt: skip
        axes.axvspan(-2, 2, color="#eeeeee", zorder=0)
        axes.axvline(0, linewidth=0.8, color="#888888")
        axes.set_title(f"{outcome}, points", fontsize=9)
        axes.set_yticks(list(places), arms, fontsize=7)
        axes.tick_params(axis="x", labelsize=7)
    panels[0, 0].invert_yaxis()
    figure.savefig(file, dpi=110, facecolor="white", metadata={"Software": None})


def main() -> int:
    chosen, runs = parser(__doc__).parse_args(), Runs()
    finished = len(runs.seeds) > 1
    if finished and not chosen.check:
        draw_differences(runs, rules.RECORDS / "differences.png")
    first = table_of_arms(runs) if finished else of_screen(runs)
    return write({PAGE: between(START, END, PAGE, first), TABLES: tables(runs)}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
