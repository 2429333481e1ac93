"""Make runs of a study, two at a time. Each that is done is a line of a csv file, and is not made again."""

from __future__ import annotations

import csv
import multiprocessing
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gtpo_cli.machine.resolve import Parts
from gtpo_cli.recipe import Recipe
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.training.loop import train


@dataclass(frozen=True, slots=True)
class Run:
    """One training and the test of what it made."""

    study: str
    arm: str
    rate: str
    seed: int
    steps: int

    @property
    def key(self) -> str:
        return f"{self.study}.{self.arm}.{self.rate}.s{self.seed}.n{self.steps}"


def train_anew(run: Run, recipe: Recipe, build: Path) -> RunFolder:
    """Train the run on one thread, in place of any earlier one."""
    torch.set_num_threads(1)
    folder = RunFolder(build / "runs" / run.key)
    shutil.rmtree(folder.path, ignore_errors=True)
    with folder.held(recipe):
        train(Parts(recipe).training_job(), folder, quiet=True)
    return folder


def make_all(
    runs: Iterable[Run], build: Path, record: Path, make: Callable[[Run, Path], dict[str, Any]], *, jobs: int = 2
) -> None:
    """Make the runs that `record` lacks; `make` returns a run's line."""
    done = {_key(row) for row in read(record)}
    todo = [run for run in runs if run.key not in done]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        for finished in as_completed([pool.submit(make, run, build) for run in todo]):
            row = finished.result()
            append(record, row)
            print(_key(row), flush=True)


def read(record: Path) -> list[dict[str, str]]:
    if not record.exists():
        return []
    with record.open(encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def append(record: Path, row: dict[str, Any]) -> None:
    new = not record.exists()
    with record.open("a", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()})


def _key(row: dict[str, Any]) -> str:
    return f"{row['study']}.{row['arm']}.{row['rate']}.s{row['seed']}.n{row['steps']}"


def written(value: Any) -> str:
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
