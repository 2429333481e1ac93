"""How often the grader is wrong on hand-made pairs of answers: `python scripts/measure/grading_rates.py`.

Two tables of tests/unit/rewards/equality_pairs.py: the rules' own (the tests hold the grader to all of it), and what
language models write, with a fair person's verdict (measured here; the misses are listed).

    python scripts/measure/grading_rates.py --copies ../shared/data/math/test.jsonl

How many questions of a file (JSON lines with `problem` and `answer`) accept a formula copied out of them as the answer,
for each of the changes of tests/unit/rewards/copies.py. Changed are the formulas and sides of equations that
are worth as much as the gold answer.
"""

from __future__ import annotations

import argparse
import json
import runpy
from math import sqrt
from pathlib import Path

from gtpo_cli.rewards import EqualityWorkers

TESTS = Path(__file__).resolve().parents[2] / "tests" / "unit" / "rewards"

Pair = tuple[str, str, bool]  # gold, predicted, right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=Path, metavar="FILE", help="count the copied formulas that are accepted")
    arguments = parser.parse_args()
    if arguments.copies:
        copies(arguments.copies)
        return
    tables = runpy.run_path(str(TESTS / "equality_pairs.py"))
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


def copies(path: Path) -> None:
    """A line for each change: the questions that accept it, without and with those where X is the gold answer."""
    names = runpy.run_path(str(TESTS / "copies.py"))
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [(row["answer"], formula, row["problem"]) for row in rows for formula in names["formulas"](row["problem"])]
    with EqualityWorkers(timeout_seconds=20.0) as workers:
        values = workers.equal_many([triple[:2] for triple in found])
        worth = [triple for triple, grade in zip(found, values, strict=True) if grade.equal]
        print(f"{len(rows)} questions, {len(found)} formulas; {len(worth)} of them are worth the gold answer")
        print(
            "change: questions that accept it (with those where X is the gold answer as it is written, or its number)"
        )
        for name, change in names["CHANGES"].items():
            asked = [(gold, changed, question, x) for gold, x, question in worth for changed in change(x)]
            grades = workers.equal_many([(gold, changed, question) for gold, changed, question, _ in asked])
            paid = [answer for answer, grade in zip(asked, grades, strict=True) if grade.equal]
            others = {question for gold, _, question, x in paid if not names["is_own_text_or_number"](gold, x)}
            print(f"  {name:24} {len(others):4} ({len({question for *_, question, _ in paid})})", flush=True)


def rate(count: int, total: int) -> str:
    """Share with its 95 % Wilson interval."""
    z, p = 1.96, count / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return f"{p:.1%} (95 % interval {max(0, centre - half):.1%} to {min(1, centre + half):.1%})"


if __name__ == "__main__":
    main()
