"""The third round: its design, and every run of it. Stopped or killed, it goes on where it was.

    python scripts/claims/round_three.py           # make claims
    python scripts/claims/round_three.py tuning    # one study: tuning, short, long, age, paper

docs/claims/round_three_registration.md says in words what is here in code. A run that is done is a line of
docs/claims/round_three/<study>.csv; its curve is in <study>_curves.csv.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from statistics import fmean

from chains import build_base, write_data
from runs import Run, make_all, read

ROOT = Path(__file__).resolve().parents[2]
BUILD, RECORDS = ROOT / "build" / "claims", ROOT / "docs" / "claims" / "round_three"

RATES = ("2.5e-5", "5e-5", "1e-4", "2e-4")
COMPARED = ("grpo", "positives", "correction", "uniform", "shuffled", "gtpo", "dapo")
PAPER = ("grpo_kl", "sft")
TUNING_SEEDS, SEEDS = (101, 102), (1, 2, 3, 4, 5, 6, 7, 8)


def tuning() -> list[Run]:
    """Every arm at every rate, on validation problems, with seeds that are not used again."""
    return [
        Run("tuning", arm, rate, seed, tunes=True)
        for seed, rate, arm in product(TUNING_SEEDS, RATES, (*COMPARED, *PAPER))
    ]


def chosen_rates() -> dict[str, str]:
    """For each arm the rate with the best mean greedy accuracy over the tuning seeds; of equal ones the lowest."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in read(RECORDS / "tuning.csv"):
        found.setdefault(row["arm"], {}).setdefault(row["rate"], []).append(float(row["greedy 3"]))
    means = {arm: {rate: fmean(by_rate[rate]) for rate in RATES} for arm, by_rate in found.items()}
    return {arm: max(RATES, key=lambda rate: (by_rate[rate], -RATES.index(rate))) for arm, by_rate in means.items()}


def comparisons() -> dict[str, list[Run]]:
    """The studies that count, seed by seed, so that those which are done can be compared whenever it stops."""
    rates = chosen_rates()
    return {
        "short": [Run("short", arm, rates[arm], seed) for seed, arm in product(SEEDS, COMPARED)],
        "long": [Run("long", arm, rates[arm], seed, steps=400) for seed, arm in product(SEEDS, COMPARED)],
        "age": [
            Run("age", arm, rates[arm], seed, generation=generation)
            for seed, arm, generation in product(SEEDS, ("grpo", "gtpo"), (4, 16))
        ],
        "paper": [Run("paper", arm, rates[arm], seed) for seed, arm in product(SEEDS, PAPER)],
    }


def main() -> None:
    wanted = sys.argv[1:] or ["tuning", "short", "long", "age", "paper"]
    if not (BUILD / "base" / "model.safetensors").exists():
        write_data(BUILD / "data")
        build_base(BUILD / "base")
    RECORDS.mkdir(exist_ok=True)
    for study in wanted:
        runs = tuning() if study == "tuning" else comparisons()[study]
        make_all(runs, BUILD, RECORDS / f"{study}.csv")


if __name__ == "__main__":
    main()
