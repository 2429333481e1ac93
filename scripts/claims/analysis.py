"""What the runs of the third round say: each outcome of a run, means of arms, and the registered differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from estimates import holm, mean, p_value, verdict
from outcomes import KS, TEMPERATURES
from runs import read

from gtpo_cli.estimators import Interval

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "claims" / "round_three"
GREEDY, PASS = "greedy", f"pass@{max(KS)}"
# outcome: its name on the page, and the columns whose mean it is
PRIMARY = {
    f"{GREEDY} 3": ("greedy, 3 operations", (f"{GREEDY} 3",)),
    f"{GREEDY} 4+5": ("greedy, 4 and 5", (f"{GREEDY} 4", f"{GREEDY} 5")),
    f"{PASS} 3": (f"{PASS}, 3 operations", (f"{PASS} 3",)),
    f"{PASS} 4+5": (f"{PASS}, 4 and 5", (f"{PASS} 4", f"{PASS} 5")),
}
SECONDARY = {
    "pass@1 3": ("temperature 1", ("pass@1 3",)),
    "maj@64 3": ("maj@64", ("maj@64 3",)),
    "forgets to stop": ("forgets to stop", ("forgets to stop",)),
}
STUDIES = {"short": 100, "long": 400}  # steps
Row = dict[str, str]


def rows_of(study: str) -> list[Row]:
    return read(RECORDS / f"{study}.csv")


def runs_of(study: str, arm: str, *, generation: int = 1) -> dict[str, Row]:
    """Its runs by seed."""
    return {r["seed"]: r for r in rows_of(study) if r["arm"] == arm and r["generation"] == str(generation)}


def whole_seeds(study: str) -> list[str]:
    """Those in which every arm of the study is done: the ones that count."""
    rows = rows_of(study)
    variants = {(row["arm"], row["generation"]) for row in rows}
    done = {(row["seed"], row["arm"], row["generation"]) for row in rows}
    seeds = sorted({row["seed"] for row in rows}, key=int)
    return [seed for seed in seeds if all((seed, *variant) in done for variant in variants)]


def value(row: Row, outcome: str) -> float:
    columns = (PRIMARY | SECONDARY).get(outcome, ("", (outcome,)))[1]
    return fmean(float(row[column]) for column in columns)


def of_arm(study: str, arm: str, outcome: str) -> Interval:
    """Mean over the seeds, with Student's 95 % interval."""
    runs = runs_of(study, arm)
    return mean([value(runs[seed], outcome) for seed in whole_seeds(study)])


def at_entropy(row: Row, nats: float) -> float:
    """A run's accuracy at the temperature at which its mean entropy is `nats`: between the temperatures that were
    tried linearly, beyond them as at the nearest."""
    entropies = [float(row[f"entropy t{t}"]) for t in TEMPERATURES]
    accuracies = [float(row[f"accuracy t{t}"]) for t in TEMPERATURES]
    order = np.argsort(entropies)
    return float(np.interp(nats, np.array(entropies)[order], np.array(accuracies)[order]))


def matched(study: str, arm: str) -> Interval:
    """Accuracy at the mean entropy that GRPO has at temperature 1, over the same seeds."""
    seeds = whole_seeds(study)
    grpo, runs = runs_of(study, "grpo"), runs_of(study, arm)
    nats = fmean(float(grpo[seed]["entropy t1.0"]) for seed in seeds)
    return mean([at_entropy(runs[seed], nats) for seed in seeds])


@dataclass(frozen=True, slots=True)
class Difference:
    """`more` minus `less` in one outcome, paired by seed. `p`: of Student's test, corrected within its pair of arms."""

    question: str
    study: str
    more: str
    less: str
    outcome: str
    found: Interval
    p: float

    @property
    def says(self) -> str:
        return verdict(self.found)


def paired(study: str, more: str, less: str, outcome: str) -> list[float]:
    """The difference of each whole seed."""
    of_more, of_less = runs_of(study, more), runs_of(study, less)
    return [value(of_more[seed], outcome) - value(of_less[seed], outcome) for seed in whole_seeds(study)]


QUESTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "Q1": (("gtpo", "grpo"),),
    "Q2": (("correction", "grpo"),),
    "Q3": (("correction", "uniform"), ("correction", "shuffled")),
    "Q4": (("uniform", "grpo"), ("positives", "grpo")),
    "Q5": (("gtpo", "correction"),),
    "Q6": (("gtpo", "dapo"),),
}


def differences(question: str) -> list[Difference]:
    """Every primary outcome of each pair, after each length of training that has two whole seeds or more."""
    samples = [
        (study, more, less, outcome, paired(study, more, less, outcome))
        for more, less in QUESTIONS[question]
        for study in STUDIES
        for outcome in PRIMARY
        if len(whole_seeds(study)) > 1
    ]
    return _corrected(question, samples)


def _corrected(question: str, samples: Sequence[tuple[str, str, str, str, list[float]]]) -> list[Difference]:
    """With Holm's correction within each pair of arms."""
    found = []
    for pair in dict.fromkeys((more, less) for _, more, less, _, _ in samples):
        own = [entry for entry in samples if entry[1:3] == pair]
        p_values = holm([p_value(differences) for *_, differences in own])
        found += [
            Difference(question, study, more, less, outcome, mean(values), p)
            for (study, more, less, outcome, values), p in zip(own, p_values, strict=True)
        ]
    return found
