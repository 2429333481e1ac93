"""Run one seed of two variants again and compare with what docs/claims recorded: `python scripts/check_claims.py`.

With the code and the kind of machine that made the record the figures are equal to the last digit, and this says so.
Other code or another machine rounds differently, and after hundreds of steps a little difference is a different run:
then shares may differ by 0.1.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SWEEP, SEED, VARIANTS = "fig2_methods", "1", ("gtpo", "grpo_beta0.04")  # two that never forget to stop
COMPARED = ("accuracy", "test accuracy", "strict format", "truncated", "groups push starts down")
TOLERANCE = 0.1


def main() -> int:
    recorded = _rows(ROOT / "docs" / "claims" / f"{SWEEP}.csv")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gtpo_cli", "sweep", SWEEP, "--seeds", SEED, "--jobs", "2", "--out", folder]
        subprocess.run([*command, "--only", ",".join(VARIANTS)], check=True)
        again = _rows(Path(folder) / "runs.csv")
    worst, equal = 0.0, True
    for variant in VARIANTS:
        before, now = recorded[variant, SEED], again[variant, SEED]
        equal = equal and before == now
        for figure in COMPARED:
            worst = max(worst, abs(float(before[figure]) - float(now[figure])))
            print(f"{variant:<12} {figure:<26} recorded {before[figure]:<10} now {now[figure]}")
    print("equal to the last digit" if equal else f"largest difference of a share: {worst:.4f} (at most {TOLERANCE})")
    return 0 if worst <= TOLERANCE else 1


def _rows(file: Path) -> dict[tuple[str, str], dict[str, str]]:
    with file.open(encoding="utf-8") as opened:
        return {(row["variant"], row["seed"]): row for row in csv.DictReader(opened)}


if __name__ == "__main__":
    sys.exit(main())
