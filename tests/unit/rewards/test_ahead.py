"""Grading ahead: the grades of the workers, whenever they are asked for, and no call blocks before that."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_cli.errors import RewardError
from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.rewards import EqualityWorkers, Scorer
from gtpo_cli.rewards.ahead import GradingAhead
from gtpo_cli.types import Completion, Group, Problem

# decided without algebra; by algebra, equal and not; not an answer at all
PAIRS = [("4", "4"), ("4", "5"), (r"\sqrt{8}", r"2\sqrt{2}"), ("x^2-1", "(x-1)(x+1)"), ("x^2-1", "x^2+1"), ("a", "(((")]
ENDLESS = (r"\sqrt{8}", "9^{9^{9^{9}}}")


@pytest.fixture(scope="module")
def workers() -> EqualityWorkers:
    with EqualityWorkers(2) as pool:
        yield pool


@settings(max_examples=25, deadline=None)
@given(named=st.lists(st.sampled_from(PAIRS), max_size=8), asked=st.lists(st.sampled_from(PAIRS), max_size=8))
def test_grades_do_not_depend_on_what_was_named_before(
    workers: EqualityWorkers, named: list[tuple[str, str]], asked: list[tuple[str, str]]
) -> None:
    ahead = GradingAhead(workers)
    for pair in named:
        ahead.begin(*pair)
    assert ahead.equal_many(asked) == workers.equal_many(asked)


def test_it_grades_while_the_caller_does_something_else(workers: EqualityWorkers) -> None:
    pair = (r"\sqrt{8}", r"2\sqrt{2}")
    workers.equal_many([pair])  # the workers are up
    ahead = GradingAhead(workers)
    ahead.begin(*pair)
    deadline = time.monotonic() + 20
    while ahead._grades[pair] is None and time.monotonic() < deadline:
        time.sleep(0.01)  # nobody asks
    grade = ahead._grades[pair]
    assert grade is not None
    assert grade.equal


def test_a_pair_is_asked_of_the_workers_once(workers: EqualityWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    original = workers.equal_many
    monkeypatch.setattr(workers, "equal_many", lambda pairs: asked.extend(pairs) or original(pairs))
    ahead = GradingAhead(workers)
    for _ in range(3):
        for pair in PAIRS:
            ahead.begin(*pair)
        ahead.equal_many(PAIRS)
    assert sorted(asked) == sorted(pair for pair in PAIRS if pair not in (("4", "4"), ("4", "5"), ("a", "(((")))
    ahead.forget()
    ahead.equal_many(PAIRS[2:3])
    assert asked[-1] == PAIRS[2]


def test_an_error_of_the_workers_reaches_who_asks(workers: EqualityWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pairs: object) -> None:
        raise RewardError("workers cannot be started")

    monkeypatch.setattr(workers, "equal_many", fail)
    ahead = GradingAhead(workers)
    ahead.begin(*PAIRS[2])  # does not raise: nobody asked yet
    with pytest.raises(RewardError, match="cannot be started"):
        ahead.equal_many(PAIRS[:3])
    monkeypatch.undo()
    assert ahead.equal_many(PAIRS) == workers.equal_many(PAIRS)


def test_closing_does_not_wait_for_a_slow_answer() -> None:
    threads = set(threading.enumerate())
    pool = EqualityWorkers(1, timeout_seconds=60)
    pool.equal_many([PAIRS[2]])
    ahead = GradingAhead(pool)
    ahead.begin(*ENDLESS)
    deadline = time.monotonic() + 20
    while not any(worker.task for worker in pool._workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert any(worker.task for worker in pool._workers)
    start = time.monotonic()
    ahead.close()
    assert time.monotonic() - start < 10
    assert pool.process_ids() == []
    assert set(threading.enumerate()) <= threads


def test_scores_are_those_of_a_scorer_that_was_told_nothing_before() -> None:
    texts = [
        r"<reasoning>a</reasoning><answer>2\sqrt{2}</answer>", "<reasoning>a</reasoning><answer>3</answer>", "nothing",
    ]  # fmt: skip
    problem = Problem("p", "q", r"\sqrt{8}")
    completions = tuple(Completion((5,), (0.0,), "stop", text) for text in texts)
    group = Group(problem, (1,), completions)
    with Scorer(RewardsRecipe(), num_workers=1) as scorer:
        expected = scorer.score_groups([group])
        for completion in completions:
            scorer.begin(problem, completion)
        assert scorer.score_groups([group]) == expected
    assert [verdict.accuracy_score for verdict in expected[0].verdicts] == [10.0, 0.0, 0.0]
