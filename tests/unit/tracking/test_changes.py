from __future__ import annotations

import math

import pytest

from gtpo_cli.tracking import changes


def rows(count: int) -> list[dict[str, float]]:
    return [{"step": i, "train/accuracy_rate": i / count, "optim/loss": float(i)} for i in range(1, count + 1)]


def test_first_and_last_twentieth() -> None:
    (accuracy,) = changes(rows(60))  # the loss of a policy gradient is no progress
    assert accuracy.steps == 3
    assert (accuracy.first, accuracy.last) == (pytest.approx(2 / 60), pytest.approx(59 / 60))
    assert str(accuracy) == "3.3% -> 98.3%"
    assert accuracy.span == "the first and the last 3 steps"
    (loss,) = changes([{"optim/loss": row["optim/loss"]} for row in rows(60)])
    assert str(loss) == "2.0000 -> 59.0000"


def test_a_side_has_a_hundred_completions_and_no_step_is_on_both() -> None:
    """One step of a few completions says little: 18.8 % and 28.1 % of 32 where the rate was 50."""
    (accuracy,) = changes(rows(60), completions=8)
    assert accuracy.steps == 13  # of 8: 104
    assert accuracy.first == pytest.approx(7 / 60)  # the mean of 1 to 13
    assert accuracy.span == "the first and the last 13 steps"
    (accuracy,) = changes(rows(60), completions=64)
    assert accuracy.steps == 3  # a twentieth is more
    (accuracy,) = changes(rows(7), completions=8)
    assert (accuracy.steps, accuracy.first, accuracy.last) == (3, pytest.approx(2 / 7), pytest.approx(6 / 7))
    assert accuracy.span == "the first and the last 3 steps, only 24 completions each"
    (accuracy,) = changes(rows(3), completions=1)
    assert accuracy.span == "the first and the last step, only 1 completion each"


def test_a_skipped_step_takes_nothing_from_the_summary() -> None:
    """One at which nothing could be sampled has no figures, one whose loss was not finite has NaN for some."""
    measured = [{"train/accuracy_rate": value, "entropy/mean": value} for value in (0.25, 0.5, 0.75)]
    skipped = [{"optim/skipped": 1.0}, {"train/accuracy_rate": 0.5, "entropy/mean": math.nan, "optim/skipped": 1.0}]
    seen = {change.words: (change.first, change.last) for change in changes([skipped[0], *measured, skipped[1]])}
    assert seen == {"accuracy": (0.25, 0.5), "entropy": (0.25, 0.75)}


def test_user_rewards_are_called_by_their_names() -> None:
    name = "rewards/my_rewards:brevity_mean"
    (change,) = changes([{name: value, "rewards/timeouts": 1.0} for value in (-1.0, 2.5)])
    assert (change.words, change.first, change.last) == ("my_rewards:brevity", -1.0, 2.5)
    assert str(change) == "-1.00 -> 2.50"
