"""Grading that is begun before it is asked for: the same grades, and no call blocks before that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_cli.errors import RewardError
from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.rewards import EqualityWorkers, Scorer
from gtpo_cli.types import Completion, Group, Problem

# decided without algebra; by algebra, equal and not; not an answer at all
PAIRS = [("4", "4"), ("4", "5"), (r"\sqrt{8}", r"2\sqrt{2}"), ("x^2-1", "(x-1)(x+1)"), ("x^2-1", "x^2+1"), ("a", "(((")]
EQUAL = [True, False, True, True, False, False]
ENDLESS = (r"\sqrt{8}", "9^{9^{9^{9}}}")


@pytest.fixture(scope="module")
def workers() -> Iterator[EqualityWorkers]:
    with EqualityWorkers(2) as pool:
        yield pool


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(named=st.lists(st.sampled_from(PAIRS), max_size=8), asked=st.lists(st.sampled_from(PAIRS), max_size=8))
def test_grades_do_not_depend_on_what_was_begun_before(
    workers: EqualityWorkers, named: list[tuple[str, str]], asked: list[tuple[str, str]]
) -> None:
    for pair in named:
        workers.begin(*pair)
    expected = dict(zip(PAIRS, EQUAL, strict=True))
    assert [grade.equal for grade in workers.equal_many(asked)] == [expected[pair] for pair in asked]


def test_it_grades_while_the_caller_does_something_else(workers: EqualityWorkers) -> None:
    pair = (r"\sqrt{8}", r"2\sqrt{2}")
    workers.equal_many([pair])  # a worker is up
    workers.begin(*pair)
    (begun,) = [answer for question, answer in workers._begun.items() if question[:2] == pair]
    deadline = time.monotonic() + 20
    while not begun.done() and time.monotonic() < deadline:
        time.sleep(0.01)  # nobody asks
    assert begun.result(timeout=0).equal
    assert workers.equal_many([pair])[0].equal
    assert pair not in {question[:2] for question in workers._begun}  # what was asked for is forgotten


@pytest.mark.slow
def test_a_pair_is_asked_of_a_worker_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []
    with EqualityWorkers(2) as pool:
        original = pool._ask
        monkeypatch.setattr(pool, "_ask", lambda question: asked.append(question[:2]) or original(question))
        for _ in range(3):
            for pair in PAIRS:
                pool.begin(*pair)
        assert [grade.equal for grade in pool.equal_many(PAIRS * 2)] == EQUAL * 2
        assert sorted(asked) == sorted(PAIRS[2:5])
        pool.equal_many(PAIRS[2:3])
        assert asked[3:] == PAIRS[2:3]


def test_an_error_of_the_workers_reaches_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(question: object) -> None:
        raise RewardError("workers cannot be started")

    with EqualityWorkers(1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(pool, "_ask", fail)
            pool.begin(*PAIRS[2])  # does not raise: nobody asked yet
            with pytest.raises(RewardError, match="cannot be started"):
                pool.equal_many(PAIRS[:3])
        assert [grade.equal for grade in pool.equal_many(PAIRS)] == EQUAL


def test_closing_does_not_wait_for_a_slow_answer() -> None:
    threads = set(threading.enumerate())
    pool = EqualityWorkers(1, timeout_seconds=60)
    pool.equal_many([PAIRS[2]])
    pool.begin(*ENDLESS)
    pool.begin(*PAIRS[3])  # waits behind it
    begun = list(pool._begun.values())
    deadline = time.monotonic() + 20
    while pool._idle and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not pool._idle
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 10
    assert pool.process_ids() == []
    assert set(threading.enumerate()) <= threads
    with pytest.raises(RewardError, match="grading was ended"):
        begun[0].result(timeout=0)
    assert begun[1].cancelled()


def test_who_waits_for_an_answer_is_told_that_grading_was_ended() -> None:
    pool = EqualityWorkers(1, timeout_seconds=60)
    pool.equal_many([PAIRS[2]])
    errors: list[RewardError] = []

    def ask(*pairs: tuple[str, str]) -> None:
        with pytest.raises(RewardError, match="grading was ended") as caught:
            pool.equal_many(pairs)
        errors.append(caught.value)

    askers = [threading.Thread(target=ask, args=(pair,)) for pair in (ENDLESS, PAIRS[3])]
    for asker in askers:
        asker.start()
        time.sleep(0.2)
    pool.close()
    for asker in askers:
        asker.join(timeout=20)
    assert len(errors) == 2
    assert pool.process_ids() == []


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
