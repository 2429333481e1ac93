"""The guard against policy collapse: each rule by hand, and curves that runs of this project recorded."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from gtpo_cli.recipe.schema import GuardRecipe
from gtpo_cli.training.guard import COLLAPSE, FIRST_STEPS, NO_SIGNAL, CollapseGuard

HEALTHY = {
    "entropy/mean": 0.3, "train/strict_format_rate": 0.9, "train/accuracy_rate": 0.4, "completions/length_mean": 50.0,
    "completions/truncated_share": 0.05, "groups/uninformative_share": 0.3,
}  # fmt: skip
NAMES = dict(zip(("entropy", "format", "accuracy", "length", "truncated", "equal"), HEALTHY, strict=True))


def steps(count: int = 3, **changed: float) -> list[dict[str, float]]:
    return [HEALTHY | {NAMES[name]: value for name, value in changed.items()}] * count


def feed(guard: CollapseGuard, rows: list[dict[str, float]]) -> list[str]:
    """What it calls a collapse."""
    return [alarm.text for row in rows for alarm in guard.observe(row) if alarm.kind == COLLAPSE]


def watch(*parts: list[dict[str, float]], **settings: Any) -> list[str]:
    return feed(CollapseGuard(GuardRecipe(window=3, **settings)), [row for part in parts for row in part])


@pytest.mark.parametrize(
    ("start", "now", "words"),
    [
        ({}, {"entropy": 0.8, "format": 0.5}, "entropy is 0.800 nats (start 0.300, ln 2 = 0.693) and the strict format "
         "rate fell from 0.90 to 0.50"),
        ({"entropy": 0.1}, {"entropy": 0.4, "format": 0.5}, "entropy is 0.400 nats (start 0.100"),
        ({}, {"truncated": 0.36}, "0.36 of the completions reach the length limit (at best 0.05)"),
        ({}, {"length": 110.0, "format": 0.6}, "completions have 110 tokens (start 50) and the strict format"),
        ({}, {"equal": 0.99}, "0.99 of the groups have equal rewards, at an accuracy rate of 0.40"),
        ({}, {"accuracy": 0.15}, "the accuracy rate fell from 0.40 to 0.15"),
    ],
)  # fmt: skip
def test_each_rule_says_what_it_saw(start: dict[str, float], now: dict[str, float], words: str) -> None:
    (alarm,) = watch(steps(**start), steps(**start | now))
    assert alarm.startswith("over the last 3 steps ")
    assert words in alarm


def test_accuracy_says_nothing_where_it_is_not_rewarded() -> None:
    """A reward of the user's own may rise while the accuracy rate falls to 0."""
    fallen = steps() + steps(accuracy=0.0) + steps(accuracy=0.0, equal=0.99)
    settings = GuardRecipe(window=3)
    assert len(feed(CollapseGuard(settings), fallen)) == 2
    assert feed(CollapseGuard(settings, rewarded=False), fallen) == []
    lost = feed(CollapseGuard(settings, rewarded=False), steps() + steps(entropy=0.8, format=0.5))
    assert len(lost) == 1


def test_a_new_level_is_no_fall_of_accuracy_and_hides_no_other_collapse() -> None:
    easy = [row | {"tasks/sums/level": 1.0} for row in steps(6, accuracy=0.8)]
    hard = [row | {"tasks/sums/level": 2.0} for row in steps(6, accuracy=0.1)]
    assert feed(CollapseGuard(GuardRecipe(window=3)), easy + hard) == []
    worse = [row | {"train/accuracy_rate": 0.1} for row in easy[:3]]
    assert len(feed(CollapseGuard(GuardRecipe(window=3)), easy + worse)) == 1
    assert feed(CollapseGuard(GuardRecipe(window=3), resting=True), easy + worse) == []
    fallen = [row | {"train/accuracy_rate": 0.7} for row in hard] + [row | {"train/accuracy_rate": 0.2} for row in hard]
    assert len(feed(CollapseGuard(GuardRecipe(window=3)), easy + fallen[:9])) == 1
    broken = [row | {"train/strict_format_rate": 0.1, "entropy/mean": 0.9} for row in hard]
    assert len(feed(CollapseGuard(GuardRecipe(window=3)), easy + broken[:3])) == 1
    moving = [row | {"tasks/sums/level": float(step % 2)} for step, row in enumerate(broken)]
    assert len(feed(CollapseGuard(GuardRecipe(window=3)), easy + moving[:3])) == 1


@pytest.mark.parametrize(
    ("start", "now"),
    [
        ({}, {"entropy": 0.6, "format": 0.5}),  # format falls, entropy is neither above ln 2 nor three times its start
        ({}, {"entropy": 0.8, "format": 0.75}),  # entropy high, format falls too little
        ({"entropy": 0.9, "format": 0.9}, {"entropy": 0.8, "format": 0.5}),  # above ln 2 from the start, and falling
        ({}, {"truncated": 0.3}),  # a rise, too small
        ({"truncated": 0.95}, {"truncated": 0.97}),  # bad from the start
        ({}, {"length": 200.0}),  # longer and as good: that is learning
        ({"accuracy": 0.9}, {"accuracy": 0.95, "equal": 1.0}),  # all right: nothing left to learn
        ({"accuracy": 0.15}, {"accuracy": 0.06}),  # more than halved, by too little to count
        ({"accuracy": 0.9}, {"accuracy": 0.6}),  # fell, but did not halve
    ],
)
def test_the_guard_is_silent_otherwise(start: dict[str, float], now: dict[str, float]) -> None:
    assert watch(steps(**start), steps(**start | now)) == []


def test_a_slow_decline_is_compared_with_the_best_window() -> None:
    slow = [row for i in range(1, 9) for row in steps(format=0.9 - 0.05 * i, entropy=0.7 + 0.01 * i)]
    assert "fell from 0.90 to 0.70" in watch(steps(), slow)[0]


def test_the_guard_goes_on_from_its_history() -> None:
    rows = steps(5) + steps(4, truncated=1.0)
    whole = CollapseGuard(GuardRecipe(window=3))
    expected = [whole.observe(row) for row in rows]
    for stop in range(len(rows)):
        resumed = CollapseGuard(GuardRecipe(window=3), history=rows[:stop])
        assert [resumed.observe(row) for row in rows[stop:]] == expected[stop:]


NEVER = {"accuracy": 0.0, "equal": 1.0}


def words(rows: list[dict[str, float]], **settings: Any) -> dict[int, tuple[str, bool]]:
    """{step: kind and whether the action is due} of what is seen."""
    guard = CollapseGuard(GuardRecipe(**settings))
    seen = {number: guard.observe(row) for number, row in enumerate(rows, start=1)}
    return {number: (alarm.kind, alarm.acts) for number, alarms in seen.items() for alarm in alarms}


def test_a_run_without_any_spread_is_told_so_once_after_ten_steps() -> None:
    assert words(steps(200, **NEVER)) == {FIRST_STEPS: (NO_SIGNAL, False)}
    assert words(steps(9, **NEVER) + steps(1, accuracy=0.0, equal=0.5) + steps(40, **NEVER)) == {}
    skipped = [{"optim/skipped": 1.0}] * 5
    assert words(skipped + steps(60, **NEVER)) == {FIRST_STEPS + 5: (NO_SIGNAL, False)}


@pytest.mark.parametrize("action", ["stop", "rollback"])
def test_at_the_second_window_the_action_is_due(action: str) -> None:
    assert words(steps(60, **NEVER), action=action) == {10: (NO_SIGNAL, False), 51: (NO_SIGNAL, True)}


def test_what_had_a_signal_and_lost_it_is_a_collapse() -> None:
    rows = steps(50, **NEVER) + steps(50) + steps(60, **NEVER)
    (told, *collapses) = words(rows).items()
    assert told == (10, (NO_SIGNAL, False))
    assert collapses
    assert {kind for _, (kind, _) in collapses} == {COLLAPSE}


def test_hardly_any_signal_from_the_start_is_no_collapse_and_said_once() -> None:
    assert words(steps(200, accuracy=0.01, equal=0.99)) == {51: (NO_SIGNAL, True)}


def test_the_remedies_are_those_of_what_is_seen() -> None:
    def said(**step: float) -> str:
        guard = CollapseGuard(GuardRecipe())
        (alarm,) = [alarm for row in steps(10, **step) for alarm in guard.observe(row)]
        return alarm.text

    hard = said(**NEVER)
    assert hard.startswith("in the first 10 steps all completions earned the same in 1.00 of the groups")
    for remedy in ("SFT first", "rewards.format.mode: presence", "higher or lower", "easier problems", "try-reward"):
        assert remedy in hard
    assert "max_completion_tokens" not in hard
    assert "a larger rollout.max_completion_tokens" in said(**NEVER, truncated=0.9)
    assert "try harder problems" in said(accuracy=1.0, equal=1.0)


def recorded() -> dict[str, list[dict[str, float]]]:
    """{run: metrics of its steps}; of docs/claims/earlier_rounds.md, "collapsed" or "healthy" by how they ended."""
    runs: dict[str, list[dict[str, float]]] = defaultdict(list)
    with (Path(__file__).parent / "recorded_curves.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            runs[row.pop("run")].append({name: float(value) for name, value in row.items()})
    return runs


@pytest.mark.parametrize("window", [20, 50])
def test_recorded_collapses_are_seen_and_healthy_runs_are_left_alone(window: int) -> None:
    runs = recorded()
    assert len(runs) == 8
    for name, rows in runs.items():
        seen = feed(CollapseGuard(GuardRecipe(window=window)), rows)
        assert bool(seen) == name.startswith("collapsed"), (name, seen)
