"""The third round: its design, and every run of it. Stopped or killed, it goes on where it was.

    python scripts/claims/round_three.py           # make claims
    python scripts/claims/round_three.py tuning    # one study: tuning, short, long, age, paper, real
    python scripts/claims/round_three.py --check   # two runs again, against the record (make claims-check)

docs/claims/round_three_registration.md says in words what is here in code. A run that is done is a line of
docs/claims/round_three/<study>.csv; its curve is in <study>_curves.csv.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import fmean

from chains import write_data
from claim_runs import Run, make_all, measure_base, read
from second_subject import make_real

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


def tuning_means() -> dict[str, dict[str, float]]:
    """{arm: {rate: greedy accuracy on validation problems, the mean over the tuning seeds}}."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in read(RECORDS / "tuning.csv"):
        found.setdefault(row["arm"], {}).setdefault(row["rate"], []).append(float(row["greedy 3"]))
    return {arm: {rate: fmean(by_rate[rate]) for rate in RATES} for arm, by_rate in found.items()}


def chosen_rates() -> dict[str, str]:
    """For each arm the rate with the best mean; of equal ones the lowest."""
    return {arm: max(RATES, key=lambda rate: means[rate]) for arm, means in tuning_means().items()}


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


# what --check makes again, and what it compares: figures of the end of a run
CHECKED, OUTCOMES, TOLERANCE = ("grpo", "gtpo"), ("greedy 3", "greedy 4", "pass@1 3", "truncated"), 0.03


def check() -> int:
    """Make two runs again; the exit code is 1 where a share differs by more than TOLERANCE."""
    runs = [run for run in comparisons()["short"] if run.seed == 1 and run.arm in CHECKED]
    recorded = {(row["arm"], row["seed"]): row for row in read(RECORDS / "short.csv")}
    with tempfile.TemporaryDirectory() as folder:
        make_all(runs, BUILD, Path(folder) / "short.csv")
        again = read(Path(folder) / "short.csv")
    worst = 0.0
    for row in again:
        before = recorded[row["arm"], row["seed"]]
        for outcome in OUTCOMES:
            worst = max(worst, abs(float(before[outcome]) - float(row[outcome])))
            print(f"{row['arm']:<6} {outcome:<10} recorded {before[outcome]:<8} now {row[outcome]}")
    print(f"largest difference of a share: {worst:.4f} (at most {TOLERANCE})")
    return 0 if worst <= TOLERANCE else 1


def main() -> int:
    if not (BUILD / "data").exists():
        write_data(BUILD / "data")
    if sys.argv[1:] == ["--check"]:
        return check()
    RECORDS.mkdir(exist_ok=True)
    measure_base(BUILD, RECORDS / "base.csv")
    for study in sys.argv[1:] or ["tuning", "short", "long", "age", "paper", "real"]:
        if study == "real":
            make_real(BUILD, RECORDS / "real.csv")
            continue
        runs = tuning() if study == "tuning" else comparisons()[study]
        make_all(runs, BUILD, RECORDS / f"{study}.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
