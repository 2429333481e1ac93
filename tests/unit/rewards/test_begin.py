"""Grading that is begun before it is asked for: the same grades, and no call blocks before that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from gtpo_cli.errors import RewardError
from gtpo_cli.rewards import EqualityWorkers

# decided without algebra; by algebra, equal and not; not an answer at all
PAIRS = [("4", "4"), ("4", "5"), (r"\sqrt{8}", r"2\sqrt{2}"), ("x^2-1", "(x-1)(x+1)"), ("x^2-1", "x^2+1"), ("a", "(((")]
ENDLESS = (r"\sqrt{8}", "9^{9^{9^{9}}}")


@pytest.fixture(scope="module")
def workers() -> Iterator[EqualityWorkers]:
    with EqualityWorkers(2) as pool:
        yield pool


def test_it_grades_while_the_caller_does_something_else(workers: EqualityWorkers) -> None:
    pair = (r"\sqrt{8}", r"2\sqrt{2}")
    workers.equal_many([pair])  # a worker is up
    workers.begin(pair)
    (begun,) = [answer for question, answer in workers._begun.items() if question[:2] == pair]
    deadline = time.monotonic() + 20
    while not begun.done() and time.monotonic() < deadline:
        time.sleep(0.01)  # nobody asks
    assert begun.result(timeout=0).equal
    assert workers.equal_many([pair])[0].equal
    assert pair not in {question[:2] for question in workers._begun}  # what was asked for is forgotten


def test_closing_does_not_wait_for_a_slow_answer() -> None:
    threads = set(threading.enumerate())
    pool = EqualityWorkers(1, timeout_seconds=60)
    pool.equal_many([PAIRS[2]])
    pool.begin(ENDLESS)
    pool.begin(PAIRS[3])  # waits behind it
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
