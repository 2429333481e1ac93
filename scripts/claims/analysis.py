"""The statistics of the third round: outcomes of a run, means of a variant, and the registered differences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from claim_runs import read
from estimates import mean, p_value, verdict
from outcomes import KS, TEMPERATURES
from round_three import comparisons
from second_subject import real_runs

from gtpo_cli.estimators import Interval, holm

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "claims" / "round_three"
LENGTHS = {"short": 100, "long": 400}  # steps of the two studies that compare all arms
GREEDY, PASS = "greedy", f"pass@{max(KS)}"
PRIMARY = {  # outcome: its name on the page
    f"{GREEDY} 3": "greedy, 3 operations",
    f"{GREEDY} 4+5": "greedy, 4 and 5",
    f"{PASS} 3": f"{PASS}, 3 operations",
    f"{PASS} 4+5": f"{PASS}, 4 and 5",
}
Row = dict[str, str]


class Variant(NamedTuple):
    """Runs that differ only by their seed."""

    study: str
    arm: str
    generation: int = 1  # rollout.steps_per_generation


class Pair(NamedTuple):
    """The difference `more` minus `less`."""

    more: Variant
    less: Variant


def in_both_lengths(more: str, less: str) -> tuple[Pair, ...]:
    return tuple(Pair(Variant(study, more), Variant(study, less)) for study in LENGTHS)


QUESTIONS: dict[str, tuple[Pair, ...]] = {
    "Q1": in_both_lengths("gtpo", "grpo"),
    "Q2": in_both_lengths("correction", "grpo"),
    "Q3": in_both_lengths("correction", "uniform") + in_both_lengths("correction", "shuffled"),
    "Q4": in_both_lengths("uniform", "grpo") + in_both_lengths("positives", "grpo"),
    "Q5": in_both_lengths("gtpo", "correction"),
    "Q6": in_both_lengths("gtpo", "dapo"),
    "Q7": tuple(Pair(Variant("age", arm, k), Variant("short", arm)) for arm in ("grpo", "gtpo") for k in (4, 16)),
    "Q8": tuple(Pair(Variant("short", "gtpo"), Variant("paper", arm)) for arm in ("grpo_kl", "sft")),
}


def runs_of(variant: Variant) -> dict[str, Row]:
    """The runs of a variant by seed."""
    rows = read(RECORDS / f"{variant.study}.csv")
    return {r["seed"]: r for r in rows if (r["arm"], r["generation"]) == (variant.arm, str(variant.generation))}


@cache
def registered() -> dict[str, set[tuple[str, str]]]:
    """The arms of each study, with their steps a generation."""
    studies = comparisons() | {"real": real_runs()}
    return {study: {(run.arm, str(run.generation)) for run in runs} for study, runs in studies.items()}


def whole_seeds(studies: Iterable[str]) -> list[str]:
    """The seeds that count: those in which every registered arm of these studies is done."""
    done = []
    for study in studies:
        rows = read(RECORDS / f"{study}.csv")
        for arm in registered()[study]:
            done.append({row["seed"] for row in rows if (row["arm"], row["generation"]) == arm})
    return sorted(set.intersection(*done), key=int)


def value(row: Row, outcome: str) -> float:
    """`outcome`: a column; "a 4+5" is the mean of the columns "a 4" and "a 5"."""
    name, _, lengths = outcome.rpartition(" ")
    columns = [f"{name} {length}" for length in lengths.split("+")] if "+" in lengths else [outcome]
    return fmean(float(row[column]) for column in columns)


def of_variant(variant: Variant, outcome: str) -> Interval:
    """Mean over the whole seeds of the study, with Student's 95 % interval."""
    runs = runs_of(variant)
    return mean([value(runs[seed], outcome) for seed in whole_seeds([variant.study])])


def at_entropy(row: Row, nats: float) -> float:
    """A run's accuracy at the temperature at which its mean entropy is `nats`: linear between the temperatures that
    were tried, and beyond them the nearest one's."""
    entropies = [float(row[f"entropy t{t}"]) for t in TEMPERATURES]
    accuracies = [float(row[f"accuracy t{t}"]) for t in TEMPERATURES]
    order = np.argsort(entropies)
    return float(np.interp(nats, np.array(entropies)[order], np.array(accuracies)[order]))


def at_grpos_entropy(study: str, arm: str) -> Interval:
    """Accuracy at the mean entropy that GRPO has at temperature 1, over the same seeds."""
    seeds = whole_seeds([study])
    grpo, runs = runs_of(Variant(study, "grpo")), runs_of(Variant(study, arm))
    nats = fmean(float(grpo[seed]["entropy t1.0"]) for seed in seeds)
    return mean([at_entropy(runs[seed], nats) for seed in seeds])


@dataclass(frozen=True, slots=True)
class Difference:
    """A pair's difference in one outcome. `p`: of Student's test, corrected with the others of the same arms."""

    pair: Pair
    outcome: str
    found: Interval
    p: float

    @property
    def verdict(self) -> str:
        return verdict(self.found)


def paired(pair: Pair, outcome: str) -> list[float]:
    """The difference of each whole seed."""
    more, less = runs_of(pair.more), runs_of(pair.less)
    seeds = whole_seeds({pair.more.study, pair.less.study})
    return [value(more[seed], outcome) - value(less[seed], outcome) for seed in seeds]


def differences(question: str) -> list[Difference]:
    """Every primary outcome of each pair. Holm's correction is over all tests of the same two arms."""
    families: dict[tuple[str, str, int], list[Pair]] = {}
    for pair in QUESTIONS[question]:
        families.setdefault((pair.more.arm, pair.less.arm, pair.more.generation), []).append(pair)
    found = []
    for pairs in families.values():
        tests = [(pair, outcome, paired(pair, outcome)) for pair in pairs for outcome in PRIMARY]
        p_values = holm([p_value(sample) for *_, sample in tests])
        found += [
            Difference(pair, outcome, mean(sample), p)
            for (pair, outcome, sample), p in zip(tests, p_values, strict=True)
        ]
    return found
