"""Which checkpoint is the best: the figure, its direction, and that interruptions have no say in it."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from commands import comparable, contents

from gtpo_cli.checkpoints import CheckpointState
from gtpo_cli.errors import GtpoError, RecipeError
from gtpo_cli.recipe import load_recipe
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.training import guard, run
from gtpo_cli.training.best import Best, check_keep_best
from gtpo_cli.training.loop import train
from gtpo_cli.types import Completion, Problem

NEW = CheckpointState(0, 0)


def chosen(name: str, values: list[float], *, window: int, before: CheckpointState = NEW) -> tuple[Any, Any]:
    """The best after a step for each value, with a checkpoint after the last."""
    best = Best(name, window=window)
    for value in values:
        best.note({name: value})
    return best.choose(len(values), before)


def test_a_checkpoint_is_as_good_as_the_last_steps_together() -> None:
    assert chosen("train/accuracy_rate", [1.0, 0.2, 0.4, 0.9], window=3) == (4, pytest.approx(0.5))
    before = CheckpointState(4, 0, best_step=4, best_value=0.6)
    assert chosen("train/accuracy_rate", [0.0] * 5 + [1.0], window=2, before=before) == (4, 0.6)
    assert chosen("train/accuracy_rate", [0.6] * 6, window=2, before=before) == (6, pytest.approx(0.6))  # a tie


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_step_without_a_number_freezes_nothing(bad: float) -> None:
    assert chosen("optim/loss", [bad, 0.5], window=2) == (2, 0.5)
    assert chosen("optim/loss", [0.5, bad], window=1) == (None, None)


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [("train/accuracy_rate", 0.9, 0.1), ("optim/loss", 0.1, 0.9), ("rewards/timeouts", 0.0, 3.0),
     ("completions/truncated_share", 0.1, 0.9), ("rewards/brevity_mean", 2.0, 1.0), ("policy/kl", 0.0, 1.0),
     ("eval/gsm8k/truncated_share", 0.1, 0.9), ("sampler/gap_max", 0.1, 0.2), ("guard/alarms", 0.0, 1.0)],
)  # fmt: skip
def test_the_metric_says_which_direction_is_better(name: str, better: float, worse: float) -> None:
    before = CheckpointState(1, 0, best_step=1, best_value=worse)
    assert chosen(name, [worse, better], window=1, before=before) == (2, better)
    before = CheckpointState(1, 0, best_step=1, best_value=better)
    assert chosen(name, [better, worse], window=1, before=before) == (1, better)


def test_a_punished_reward_does_not_keep_the_checkpoint_with_most_of_it() -> None:
    plugins = "rewards.plugins=[{name: 'test_best:parity', weight: %s}]"
    for weight in ("0.5", "0"):
        check_keep_best(
            load_recipe("tiny_arithmetic", [plugins % weight, "training.keep_best=rewards/test_best:parity_mean"])
        )
    punished = load_recipe("tiny_arithmetic", [plugins % "-0.5", "training.keep_best=rewards/test_best:parity_mean"])
    with pytest.raises(
        RecipeError, match=r"has a negative weight, so less of it is better.*; choose train/reward_mean"
    ):
        check_keep_best(punished)


# A run of 12 steps whose groups are never of one reward for long, with a guard that speaks every third step: it goes
# back to the best checkpoint again and again, so that which one that is decides all that follows.
OVERRIDES = [
    "seed=5", "objective.initial_entropy=0.4", "optimizer.learning_rate=0.003",
    "rollout={prompts_per_step: 6, group_size: 2, max_completion_tokens: 24}",
    "rewards={accuracy: {weight: 0.0}, format: {weight: 0.0}, plugins: [{name: 'test_best:parity'}]}",
    "training={max_steps: 12, save_every: 2, keep_last: 2, keep_best: rewards/test_best:parity_mean,"
    " guard: {action: rollback, window: 3}}",
]  # fmt: skip


@pytest.fixture
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that speaks at every window, and may go back nine times."""
    monkeypatch.setattr(guard, "TRUNCATED_RISE", 0.001)
    monkeypatch.setattr(run, "MAX_ROLLBACKS", 9)


_calls = 0
_interrupt_at: set[int] = set()


def parity(problem: Problem, completion: Completion) -> float:
    """A reward of the test's own; at some calls it sends the signal that a pre-empted machine sends."""
    global _calls
    _calls += 1
    if _calls in _interrupt_at:
        os.kill(os.getpid(), signal.SIGTERM)
    return sum(completion.token_ids) % 2


def run_to_its_end(folder: Path, *interrupted_after: int) -> Path:
    """Train, with a SIGTERM in each of these steps, and a resume after each."""
    global _calls
    _calls = 0
    _interrupt_at.clear()
    _interrupt_at.update(12 * step - 3 for step in interrupted_after)
    recipe = load_recipe("tiny_arithmetic", OVERRIDES)
    there = RunFolder(folder)
    there.create(recipe)
    result = train(recipe, there, quiet=True)
    for step in interrupted_after:
        assert (result.stopped, result.step) == ("terminated", step)
        result = train(recipe, there, resume=True, quiet=True)
    assert (result.stopped, result.step) == (None, 12)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("_eager")
def test_interrupted_or_not_best_metrics_and_weights_are_the_same(tmp_path: Path) -> None:
    whole, interrupted = run_to_its_end(tmp_path / "whole"), run_to_its_end(tmp_path / "interrupted", 3, 5, 8, 11)
    assert sum(row["guard/alarms"] > 0 for row in comparable(whole)) >= 2
    assert comparable(interrupted) == comparable(whole)
    assert contents(interrupted) == contents(whole)


@pytest.mark.slow
@pytest.mark.usefixtures("_eager")
def test_a_run_that_the_guard_stopped_stays_stopped(tmp_path: Path) -> None:
    stopping = [*OVERRIDES, "training.guard.action=stop", "training.keep_best=null"]
    recipe, there = load_recipe("tiny_arithmetic", stopping), RunFolder(tmp_path / "run")
    there.create(recipe)
    result = train(recipe, there, quiet=True)
    assert result.stopped is not None
    assert result.stopped.startswith("policy collapse: over the last 3 steps")
    before = {path: path.read_bytes() for path in there.path.rglob("*") if path.is_file()}
    assert sorted(path.name for path in there.checkpoints.iterdir())[-1] == f"step-{result.step:06d}"
    for _ in range(2):
        with pytest.raises(GtpoError, match=rf"the guard stopped this run at step {result.step} \(policy collapse: .*"):
            train(recipe, there, resume=True, quiet=True)
    assert {path: path.read_bytes() for path in there.path.rglob("*") if path.is_file()} == before
    going_on = load_recipe("tiny_arithmetic", [*stopping, "training.guard.action=warn"])
    assert train(going_on, there, resume=True, quiet=True).step == 12
