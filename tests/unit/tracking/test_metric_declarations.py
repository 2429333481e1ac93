"""The declared names are a contract with people's dashboards; the table is part of the documentation."""

from __future__ import annotations

import math
import re

import pytest

from gtpo_cli.recipe.data import KNOWN
from gtpo_cli.tracking import METRICS, find_metric, metrics_table
from gtpo_cli.tracking.metrics import in_order

# Written out here on purpose: renaming a metric must break a test.
NAMES = [
    "step",
    "train/reward_mean",
    "train/reward_std",
    "train/format_rate",
    "train/accuracy_rate",
    "train/strict_format_rate",
    "entropy/mean",
    "entropy/max",
    "entropy/filtered_share",
    "conflict/share",
    "conflict/forward_share",
    "conflict/backward_share",
    "tokens/weighted_share",
    "tokens/learning_share",
    "groups/uninformative_share",
    "groups/resampled_share",
    "completions/length_mean",
    "completions/truncated_share",
    "completions/empty_share",
    "optim/loss",
    "optim/grad_norm",
    "optim/learning_rate",
    "optim/skipped",
    "guard/alarms",
    "policy/kl",
    "sampler/gap_mean",
    "sampler/gap_max",
    "samples/age",
    "ratio/mean",
    "ratio/max",
    "ratio/clipped_share",
    "tasks/resting",
    "rewards/timeouts",
    "rewards/errors",
    "time/sample",
    "time/reward",
    "time/weigh",
    "time/train",
    "time/step",
    "speed/tokens_per_second",
    "memory/peak_bytes",
]


def test_exactly_the_published_names_in_their_order() -> None:
    assert list(METRICS) == NAMES
    assert all(METRICS[name].name == name for name in NAMES)


# Written out here on purpose: a checkpoint is kept as the best by these, and people read them as advice. What is not
# here may rise or fall while a policy learns: entropy, length, KL, gradient norm, the loss of a policy gradient, ...
DIRECTIONS = {
    "more": {"train/reward_mean", "train/format_rate", "train/accuracy_rate", "train/strict_format_rate",
             "speed/tokens_per_second", "rewards/a_mean", "eval/math/accuracy_rate", "eval/math/strict_format_rate"},
    "less": {"completions/truncated_share", "completions/empty_share", "optim/skipped", "guard/alarms",
             "sampler/gap_mean", "sampler/gap_max", "rewards/timeouts", "rewards/errors", "time/sample", "time/reward",
             "time/weigh", "time/train", "time/step", "memory/peak_bytes", "eval/math/truncated_share", "eval/time"},
    "less in SFT": {"optim/loss"},
}  # fmt: skip


def test_a_metric_has_a_better_value_only_where_that_holds_for_every_run() -> None:
    families = [row.split("`")[1] for row in metrics_table().splitlines() if "<" in row.split("|")[1]]
    placed = {"<name>": "a", "<benchmark>": "math", "<place>": "eos", "<sign>": "positive"}
    examples = [re.sub("<[a-z]+>", lambda found: placed[found[0]], name) for name in families]
    declared = [find_metric(name) for name in [*NAMES, *examples, "eval/time"]]
    for direction, names in DIRECTIONS.items():
        assert {metric.name for metric in declared if metric.better == direction} == names
    assert {metric.better for metric in declared} == {None, *DIRECTIONS}


def test_user_rewards_follow_a_rule() -> None:
    metric = find_metric("rewards/my_pkg.rewards:brevity_mean")
    assert metric.name == "rewards/my_pkg.rewards:brevity_mean"
    assert "unweighted score of a user reward" in metric.formula
    assert metric.low == -math.inf
    assert find_metric("rewards/timeouts") is METRICS["rewards/timeouts"]


def test_evaluations_during_training_are_named_after_their_benchmark() -> None:
    metric = find_metric("eval/aime24/accuracy_rate")
    assert (metric.name, metric.unit, metric.low, metric.high) == ("eval/aime24/accuracy_rate", "share", 0.0, 1.0)
    for benchmark in (*KNOWN, "reasoning_gym/gcd", "my_task.py:Task"):
        assert find_metric(f"eval/{benchmark}/length_mean").unit == "tokens"
    assert find_metric("eval/time").unit == "s"


@pytest.mark.parametrize(
    "name",
    [
        "train/reward",
        "rewards/_mean",
        "eval/aime24/accuracy",
        "eval//accuracy_rate",
        "rewards/brevity",
        "xrewards/a_mean",
        "Step",
        "",
    ],
)
def test_an_undeclared_name_is_a_programming_error(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name} is not a declared metric")):
        find_metric(name)


def test_order_is_declared_order_then_user_rewards_by_name() -> None:
    shuffled = ["rewards/b_mean", "memory/peak_bytes", "rewards/a_mean", "entropy/max", "train/reward_mean"]
    assert in_order(shuffled) == [
        "train/reward_mean",
        "entropy/max",
        "memory/peak_bytes",
        "rewards/a_mean",
        "rewards/b_mean",
    ]
