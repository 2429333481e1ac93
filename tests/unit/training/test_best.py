"""Which checkpoint is the best: the figure, its direction, and that interruptions have no say in it."""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import pytest

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import load_recipe
from gtpo_cli.runs.checkpoints import CheckpointState
from gtpo_cli.training.best import Best, check_keep_best, more_is_better
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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["objective.name=sft", "training.keep_best=train/accuracy_rate"], "SFT imitates and samples nothing; choose"),
        (["data.rest_after=2", "training.keep_best=train/accuracy_rate"], "is of the problems that are asked, which"),
        (["training.keep_best=rewards/length_mean"], "the recipe has the further rewards none"),
        (
            ["training.eval_every=5", "data.benchmark=mixture", "data.mixture={arithmetic: 1, word_problems: 1}",
             "evaluation.benchmarks=[word_problems]", "training.keep_best=eval/arithmetic/accuracy_rate"],
            "is not measured; evaluation.benchmarks has only word_problems",
        ),
    ],
)  # fmt: skip
def test_a_metric_that_the_run_never_logs_keeps_nothing(changes: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        check_keep_best(load_recipe("tiny_arithmetic", changes))


def test_where_training_changes_what_it_asks_its_accuracy_chooses_nothing() -> None:
    assert load_recipe("tiny_arithmetic").training.keep_best == "train/accuracy_rate"
    assert load_recipe("tiny_arithmetic", ["data.rest_after=2"]).training.keep_best is None
    check_keep_best(
        load_recipe("tiny_arithmetic", ["data.rest_after=2", "training.keep_best=completions/truncated_share"])
    )


def test_the_part_of_a_mixture_can_choose() -> None:
    changes = ["training.eval_every=5", "data.benchmark=mixture", "data.mixture={arithmetic: 1, word_problems: 1}"]
    recipe = load_recipe("tiny_arithmetic", [*changes, "training.keep_best=eval/arithmetic/accuracy_rate"])
    assert recipe.evaluation.benchmarks == ("mixture",)
    check_keep_best(recipe)
    assert more_is_better("here", "eval/arithmetic/accuracy_rate", recipe)


_calls = 0
_interrupt_at: set[int] = set()


def parity(problem: Problem, completion: Completion) -> float:
    """A reward of the test's own; at some calls it sends the signal that a pre-empted machine sends."""
    global _calls
    _calls += 1
    if _calls in _interrupt_at:
        os.kill(os.getpid(), signal.SIGTERM)
    return sum(completion.token_ids) % 2
