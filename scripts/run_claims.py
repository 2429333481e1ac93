"""Make every run behind docs/claims.md: `python scripts/run_claims.py`. Stopped or killed, it goes on where it was.

Bases are built, the tuning sweeps run, rates chosen from them by the registered rule, and the comparisons run with
those. Everything is in build/; docs/claims/<study>.csv get the figures of each sweep that is done.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import yaml
from claims_design import BASES, BUILT, FAMILIES, JSON_TASK, Overrides, comparisons, tuning
from claims_tests import DATA, INITIAL, rates

from gtpo_cli.run_folder import RunFolder

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "claims"
GTPO = (sys.executable, "-m", "gtpo_cli")


def build_bases() -> None:
    """Those that are missing: a few minutes each."""
    for name, arguments in BUILT.items():
        if not (ROOT / BASES / name / "model.safetensors").exists():
            _call(sys.executable, "scripts/build_tiny_model.py", "--out", f"{BASES}/{name}", *arguments)
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


def _call(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    build_bases()
    run(tuning())
    chosen, _ = rates()
    studies = comparisons(chosen)
    paths = {name: study for name, study in studies.items() if name.startswith("path_")}
    run(paths)
    take_initial_entropies()
    run({name: study for name, study in studies.items() if name not in paths})


if __name__ == "__main__":
    main()
