"""The second subject of the third round: SmolLM2-135M-Instruct on word problems, after the SFT of its shipped recipe.

The model is that of make real-model. The test problems have wordings that training never sees.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from arms import ARMS
from claim_runs import Run, append, make_all, train_anew, written
from outcomes import GREEDY, Subject, accuracy, sampled_scores

from gtpo_cli.machine.resolve import Parts
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.load import load_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.checkpoints import choose_checkpoint
from gtpo_cli.tasks.making import task_problems

MODEL = Path(__file__).resolve().parents[2] / "build" / "smollm2-135m"
REAL_ARMS, REAL_SEEDS, REAL_STEPS = ("grpo", "uniform", "correction", "gtpo"), (1, 2, 3), 25
START = Run("real", "start", "2e-4", seed=3407, steps=40)  # SFT, as the recipe ships
PROBLEMS = 240  # for greedy answers: all of the test split
SAMPLED_PROBLEMS, SAMPLES = 60, 16


def real_runs() -> list[Run]:
    """Seed by seed, at the learning rate of the recipe."""
    return [Run("real", arm, "1e-4", seed, REAL_STEPS) for seed, arm in product(REAL_SEEDS, REAL_ARMS)]


def make_real(build: Path, record: Path) -> None:
    """Make the runs that `record` lacks, and before them the start, whose figures go into real_start.csv."""
    of_start = record.with_name(f"{record.stem}_start.csv")
    if not of_start.exists() or not (build / "runs" / START.key).exists():
        row, _ = make_one(START, build)
        of_start.unlink(missing_ok=True)
        append(of_start, [row])
    make_all(real_runs(), build, record, make=make_one)


def make_one(run: Run, build: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The run's figures. It has no curve."""
    recipe = _recipe_of(run, build)
    folder = train_anew(run, recipe, build)
    checkpoint = choose_checkpoint(folder, "last")
    problems = task_problems("word_problems", {}, "test", 0, PROBLEMS)
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        subject = Subject(recipe, checkpoint, scorer)
        greedy = subject.answers(problems, samples=1, temperature=GREEDY)
        sampled = subject.answers(problems[:SAMPLED_PROBLEMS], samples=SAMPLES, temperature=1.0, entropy=True)
    completions = [completion for problem in sampled for completion in problem.completions]
    row = {key: value for key, value in asdict(run).items() if key != "tunes"}
    return row | {"greedy": accuracy(greedy)} | sampled_scores(sampled) | {
        "strict format": fmean(completion.strict_format for completion in completions),
        "entropy": fmean(entropy for problem in sampled for entropy in problem.entropies),
        "truncated": fmean(completion.truncated for completion in completions),
    }, []  # fmt: skip


def _recipe_of(run: Run, build: Path) -> Recipe:
    settings = {
        "model.name": MODEL, "output_dir": build / "runs", "run_name": run.key, "seed": run.seed,
        "training.max_steps": run.steps, "training.guard.action": "warn",
    }  # fmt: skip
    name = "smollm135m_words_sft"
    if run != START:
        name = "smollm135m_words"
        settings |= {"model.start": build / "runs" / START.key, **ARMS[run.arm].recipe}
    return Parts(load_recipe(name, [f"{key}={written(value)}" for key, value in settings.items()])).recipe
