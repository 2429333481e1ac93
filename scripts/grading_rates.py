"""How often the grader is wrong on hand-made pairs of answers: `python scripts/grading_rates.py`.

Two tables of tests/unit/rewards/equality_pairs.py: the rules' own (the tests hold the grader to all of it), and what
language models write, with a fair person's verdict (measured here; the misses are listed).
"""

from __future__ import annotations

import runpy
from math import sqrt
from pathlib import Path

from gtpo_cli.rewards import EqualityWorkers

TABLES = Path(__file__).resolve().parent.parent / "tests" / "unit" / "rewards" / "equality_pairs.py"

Pair = tuple[str, str, bool]  # gold, predicted, right


def main() -> None:
    tables = runpy.run_path(str(TABLES))
    rules = [(*pair, True) for pair in dict.fromkeys(tables["EQUAL"])]
    rules += [(*pair, False) for pair in dict.fromkeys(tables["UNEQUAL"])]
    with EqualityWorkers() as workers:
        report("the rules' own table", rules, workers)
        report("what language models write", list(dict.fromkeys(tables["MODEL_ANSWERS"])), workers)


def report(title: str, pairs: list[Pair], workers: EqualityWorkers) -> None:
    grades = workers.equal_many([(gold, predicted) for gold, predicted, _ in pairs])
    wrong = [(pair, grade.equal) for pair, grade in zip(pairs, grades, strict=True) if grade.equal != pair[2]]
    same = sum(right for *_, right in pairs)
    print(f"{title}: {len(pairs)} pairs, {same} equal, {len(pairs) - same} unequal")
    missed = [pair for pair, equal in wrong if not equal]
    accepted = [pair for pair, equal in wrong if equal]
    print(f"  false negatives: {len(missed)} of {same}, {rate(len(missed), same)}")
    print(f"  false positives: {len(accepted)} of {len(pairs) - same}, {rate(len(accepted), len(pairs) - same)}")
    for gold, predicted, right in [*missed, *accepted]:
        print(f"    {gold!r} and {predicted!r}: {'equal, judged unequal' if right else 'UNEQUAL, JUDGED EQUAL'}")


def rate(count: int, total: int) -> str:
    """Share with its 95 % Wilson interval."""
    z, p = 1.96, count / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return f"{p:.1%} (95 % interval {max(0, centre - half):.1%} to {min(1, centre + half):.1%})"


if __name__ == "__main__":
    main()
