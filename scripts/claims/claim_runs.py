"""Make runs of the third round, two at a time. Each that is done is a line of a csv file, and is not made again."""

from __future__ import annotations

import csv
import math
import multiprocessing
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from arms import ARMS
from chains import BASE
from outcomes import GREEDY, Subject, accuracy, final_outcomes, read_problems

from gtpo_cli.estimators import pass_at_k
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.load import load_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.checkpoints import Checkpoint, CheckpointStore
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tracking import read_metrics
from gtpo_cli.training.loop import train

COMMON = {
    "model.load_in_4bit": False, "model.lora": None, "model.gradient_checkpointing": False,  # all weights
    "data.benchmark": "local", "data.columns": {"answer": "gold", "solution": "solution"}, "data.system_prompt": None,
    "rewards.format.weight": 0.0,  # a right answer is all that is rewarded
    "training.keep_best": None, "training.guard.action": "warn",
    "tracking.log_completions_every": 100,
}  # fmt: skip
LOOKS = 4  # how often a curve is looked at, the end included
CURVE_PROBLEMS, CURVE_SAMPLES = 50, 16
CURVES = ("greedy", "temperature 1", f"pass@{CURVE_SAMPLES}")


@dataclass(frozen=True, slots=True)
class Run:
    """One training and the test of what it made. `generation`: steps from one generation."""

    study: str
    arm: str
    rate: str
    seed: int
    steps: int = 100
    generation: int = 1
    tunes: bool = False  # tested greedily on validation problems, and that is all

    @property
    def key(self) -> str:
        return f"{self.study}.{self.arm}.{self.rate}.s{self.seed}.n{self.steps}.k{self.generation}"


Make = Callable[[Run, Path], tuple[dict[str, Any], list[dict[str, Any]]]]


def recipe_of(run: Run, build: Path) -> Recipe:
    settings = {
        **COMMON, "model.name": str(BASE), "data.path": str(build / "data" / "train.jsonl"),
        "output_dir": str(build / "runs"), "run_name": run.key, "seed": run.seed, "training.max_steps": run.steps,
        "training.save_every": run.steps // LOOKS, "training.keep_last": LOOKS,
        "optimizer.learning_rate": float(run.rate), "rollout.steps_per_generation": run.generation,
        **ARMS[run.arm].recipe,
    }  # fmt: skip
    return load_recipe("tiny_arithmetic", [f"{key}={written(value)}" for key, value in settings.items()])


def train_anew(run: Run, recipe: Recipe, build: Path) -> RunFolder:
    """Train the run on one thread, in place of any earlier one."""
    torch.set_num_threads(1)
    folder = RunFolder(build / "runs" / run.key)
    shutil.rmtree(folder.path, ignore_errors=True)
    with folder.held(recipe):
        train(Parts(recipe).training_job(), folder, quiet=True)
    return folder


def make(run: Run, build: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The run's figures, and its curve."""
    data, recipe = build / "data", recipe_of(run, build)
    folder = train_anew(run, recipe, build)
    metrics = read_metrics(folder.path / "metrics.jsonl")
    store = CheckpointStore(folder.checkpoints, keep_last=LOOKS)
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        subjects = {step: Subject(recipe, Checkpoint(step, store.path(step)), scorer) for step in store.steps()}
        end = subjects[run.steps]
        if run.tunes:
            validation = read_problems(data / "validation3.jsonl")
            found = {"greedy 3": accuracy(end.answers(validation, samples=1, temperature=GREEDY))}
            curve = []
        else:
            found = final_outcomes(end, data)
            curve = [{"run": run.key, "step": step} | _look(subject, data) for step, subject in subjects.items()]
    last = metrics[-max(1, run.steps // 10) :]
    row = {key: value for key, value in asdict(run).items() if key != "tunes"}
    row |= found | {
        "forgets to stop": float(any(m.get("completions/truncated_share", 0.0) > 0.5 for m in metrics)),
        "training accuracy": fmean(m.get("train/accuracy_rate", math.nan) for m in last),
        "training entropy": fmean(m["entropy/mean"] for m in last),
        "conflict share": fmean(m.get("conflict/share", math.nan) for m in metrics),
    }
    shutil.rmtree(folder.checkpoints)
    return row, curve


def measure_base(build: Path, record: Path) -> None:
    """The figures of the base, before any training, and the beginning of every curve. Nothing if `record` has them."""
    if record.exists():
        return
    run, data = Run("base", "grpo", "1e-4", seed=1), build / "data"
    recipe = recipe_of(run, build)
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        base = Subject(recipe, None, scorer)
        figures = {"study": "base", "arm": "base", "seed": 1, "generation": 1} | final_outcomes(base, data)
        append(record.with_name(f"{record.stem}_curves.csv"), [{"run": "base", "step": 0} | _look(base, data)])
    append(record, [figures])


def _look(subject: Subject, data: Path) -> dict[str, float]:
    """The three accuracies of a curve, on a few validation problems."""
    problems, n = read_problems(data / "validation3.jsonl")[:CURVE_PROBLEMS], CURVE_SAMPLES
    sampled = subject.answers(problems, samples=n, temperature=1.0)
    found = (
        accuracy(subject.answers(problems, samples=1, temperature=GREEDY)),
        accuracy(sampled),
        fmean(pass_at_k(n, sum(c.correct for c in p.completions), n) for p in sampled),
    )
    return dict(zip(CURVES, found, strict=True))


def make_all(runs: Iterable[Run], build: Path, record: Path, *, make: Make = make, jobs: int = 2) -> None:
    """Make the runs that `record` lacks. Curves go beside it, into <record>_curves.csv."""
    done = {_key(row) for row in read(record)}
    todo = [run for run in runs if run.key not in done]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        for finished in as_completed([pool.submit(make, run, build) for run in todo]):
            row, curve = finished.result()
            if curve:
                append(record.with_name(f"{record.stem}_curves.csv"), curve)
            append(record, [row])
            print(_key(row), flush=True)


def read(record: Path) -> list[dict[str, str]]:
    if not record.exists():
        return []
    with record.open(encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def append(file: Path, rows: list[dict[str, Any]]) -> None:
    new = not file.exists()
    with file.open("a", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow({key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()})


def _key(row: dict[str, Any]) -> str:
    return f"{row['study']}.{row['arm']}.{row['rate']}.s{row['seed']}.n{row['steps']}.k{row['generation']}"


def written(value: Any) -> str:
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
