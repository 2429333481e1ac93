"""A small run with all that a run does, and what of it must come out equal whatever happened in between."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import forks
from commands import GTPO, comparable, contents, environment

# Probe, checkpoints, the best one, several iterations, evaluations, samples of every step.
SETTINGS = [
    "rollout.prompts_per_step=2", "rollout.group_size=4", "rollout.max_completion_tokens=32", "tracking.wandb.mode=off",
    "objective.probe.num_prompts=16", "objective.num_iterations=2", "training.max_steps=10", "training.save_every=2",
    "training.keep_last=2", "tracking.log_completions_every=1", "training.eval_every=3", "evaluation.limit=16",
    "data.limit=64",
]  # fmt: skip


def train(name: str, *changes: str) -> list[str]:
    overrides = [f"run_name={name}", *SETTINGS, *changes]
    return ["train", "--quiet", "--recipe", "tiny_arithmetic", *(part for o in overrides for part in ("--set", o))]


def resume(name: str) -> list[str]:
    return ["train", "--quiet", "--resume", f"runs/{name}"]


def gtpo(folder: Path, arguments: list[str], *, code: int = 0) -> str:
    """Standard output and error of a gtpo that must end with this exit code."""
    done = forks.run([*GTPO, *arguments], cwd=folder, env=environment())
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def finish(folder: Path, name: str, *changes: str) -> str:
    """Resume where there is a run, start it where nothing was left of it."""
    there = (folder / "runs" / name / "recipe.yaml").exists()
    return gtpo(folder, resume(name) if there else train(name, *changes))


@dataclass(frozen=True)
class Whole:
    """The run that nothing happened to: its folder, how often it changed a file, its seconds."""

    run: Path
    changes: int
    seconds: float


def assert_equal(run: Path, whole: Whole) -> None:
    assert comparable(run) == comparable(whole.run)  # every number of every step, none of them twice
    assert contents(run) == contents(whole.run)
    assert not list((run / "checkpoints").glob(".*")), "something half-written was left"
