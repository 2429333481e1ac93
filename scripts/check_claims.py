"""Make two of the runs behind docs/claims.md again and compare: `python scripts/check_claims.py`.

With the code and the kind of machine that made the record the figures are equal to the last digit, and this says so.
Other code or another machine rounds differently, and after a hundred steps a little difference is a different run: then
shares may differ by 0.1.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from claims_design import comparisons
from claims_tests import DATA, rates

STUDY, SEED, VARIANTS = "path_tiny", "1", ("t1.0.gtpo", "t1.3.grpo")
COMPARED = ("test accuracy", "accuracy", "strict format", "truncated")
TOLERANCE = 0.1


def main() -> int:
    recorded = _rows(DATA / f"{STUDY}.csv")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{STUDY}.yaml"
        file.write_text(yaml.safe_dump(comparisons(rates()[0])[STUDY]), encoding="utf-8")
        command = [sys.executable, "-m", "gtpo_cli", "sweep", str(file), "--seeds", SEED, "--jobs", "2"]
        subprocess.run([*command, "--only", ",".join(VARIANTS), "--out", folder], check=True)
        again = _rows(Path(folder) / "runs.csv")
    worst, equal = 0.0, True
    for variant in VARIANTS:
        before, now = recorded[variant, SEED], again[variant, SEED]
        equal = equal and before == now
        for figure in COMPARED:
            worst = max(worst, abs(float(before[figure]) - float(now[figure])))
            print(f"{variant:<12} {figure:<14} recorded {before[figure]:<10} now {now[figure]}")
    print("equal to the last digit" if equal else f"largest difference of a share: {worst:.4f} (at most {TOLERANCE})")
    return 0 if worst <= TOLERANCE else 1


def _rows(file: Path) -> dict[tuple[str, str], dict[str, str]]:
    with file.open(encoding="utf-8") as opened:
        return {(row["variant"], row["seed"]): row for row in csv.DictReader(opened)}


if __name__ == "__main__":
    sys.exit(main())
