"""Make every run behind docs/claims.md. Stopped or killed, it goes on where it was.

    python scripts/claims/run_claims.py             # all of them (make claims)
    python scripts/claims/run_claims.py --check     # two of them again, against the record (make claims-check)

It builds the bases, runs the tuning sweeps, chooses the rates by the registered rule, and runs the comparisons with
those. Everything is in build/; docs/claims/<study>.csv get the figures of each sweep that is done.

With the code and the kind of machine that made the record, the figures of a check are equal to the last digit, and it
says so. Other code or another machine rounds differently, and after a hundred steps a small difference is a different
run: then shares may differ by 0.1.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import yaml
from claims_design import BASES, BUILT, FAMILIES, JSON_TASK, Overrides, comparisons, tuning
from claims_tests import DATA, INITIAL, rates

from gtpo_cli.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "claims"
GTPO = (sys.executable, "-m", "gtpo_cli")

# what --check makes again, and what it compares
STUDY, SEED, VARIANTS = "path_tiny", "1", ("t1.0.gtpo", "t1.3.grpo")
COMPARED = ("test accuracy", "accuracy", "strict format", "truncated")
TOLERANCE = 0.1


def build_bases() -> None:
    """Those that are missing: a few minutes each."""
    for name, arguments in BUILT.items():
        if not (ROOT / BASES / name / "model.safetensors").exists():
            _call(sys.executable, "scripts/models/build_tiny_model.py", "--out", f"{BASES}/{name}", *arguments)
    _call(sys.executable, f"{JSON_TASK}/make_data.py")
    if not (ROOT / BASES / "json" / "model.safetensors").exists():
        warm = BUILD / "json_warm_start"
        shutil.rmtree(warm, ignore_errors=True)
        where = (f"data.path={JSON_TASK}/data", f"output_dir={warm.parent}", f"run_name={warm.name}")
        sets = [word for setting in where for word in ("--set", setting)]
        _call(*GTPO, "train", "--recipe", f"{JSON_TASK}/warm_start.yaml", *sets)
        _call(*GTPO, "export", str(warm), "--dtype", "float32", "--out", f"{BASES}/json")


def run(sweeps: Mapping[str, Overrides]) -> None:
    """Run what is missing of each, and take its figures over."""
    (BUILD / "sweeps").mkdir(parents=True, exist_ok=True)
    for name, sweep in sweeps.items():
        file, folder = BUILD / "sweeps" / f"{name}.yaml", BUILD / name
        file.write_text(yaml.safe_dump(sweep, sort_keys=False), encoding="utf-8")
        _call(*GTPO, "sweep", str(file), "--jobs", "2", "--out", str(folder))
        shutil.copy(folder / "runs.csv", DATA / f"{name}.csv")


def take_initial_entropies() -> None:
    """<H>_ini of each setting: the mean of what its runs of GTPO measured before their first step."""
    rows = []
    for family, settings in FAMILIES.items():
        for setting in settings:
            runs = (BUILD / f"path_{family}" / "runs").glob(f"{setting}.gtpo-*")
            measured = [RunFolder(run).initial_entropy() for run in runs]
            rows.append((family, setting, round(fmean(found for found in measured if found is not None), 4)))
    with (DATA / INITIAL).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("family", "setting", "initial entropy"), *rows])


def check() -> int:
    """Make two runs again; the exit code is 1 where a share differs by more than the tolerance."""
    recorded = _rows(DATA / f"{STUDY}.csv")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{STUDY}.yaml"
        file.write_text(yaml.safe_dump(comparisons(rates()[0])[STUDY]), encoding="utf-8")
        _call(*GTPO, "sweep", str(file), "--seeds", SEED, "--jobs", "2", "--only", ",".join(VARIANTS), "--out", folder)
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


def _call(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="make two of the runs again and compare")
    if parser.parse_args().check:
        return check()
    build_bases()
    run(tuning())
    chosen, _ = rates()
    studies = comparisons(chosen)
    paths = {name: study for name, study in studies.items() if name.startswith("path_")}
    run(paths)
    take_initial_entropies()
    run({name: study for name, study in studies.items() if name not in paths})
    return 0


if __name__ == "__main__":
    sys.exit(main())
