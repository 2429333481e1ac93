"""Grading workers: slow, greedy and dying ones. Real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from gtpo_cli.errors import RewardError
from gtpo_cli.rewards import EqualityWorkers
from gtpo_cli.rewards.equality import Equality, equal_without_algebra
from gtpo_cli.rewards.equality import _Worker as Worker

NEEDS_ALGEBRA = (r"\sqrt{8}", r"2\sqrt{2}")
ENDLESS = ("5", "9^{9^{9^{9}}}")
YES, NO = Equality(1.0), Equality(0.0)


def process_ids(workers: EqualityWorkers) -> list[int]:
    return [worker.process.pid for worker in workers._workers]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def workers() -> Iterator[EqualityWorkers]:
    with EqualityWorkers(1, timeout_seconds=1.0) as workers:
        yield workers


def test_easy_answers_start_no_process() -> None:
    with EqualityWorkers(2) as workers:
        assert workers.equal_many([("18", "$18.00"), ("18", "19"), ("Monday", "monday")]) == [YES, NO, YES]
        assert workers.usable_many(["18", "", "Monday"]) == [True, False, True]
        assert workers.equal_many([]) == []
        assert process_ids(workers) == []


def test_an_endless_answer_costs_its_timeout_and_the_next_is_graded_right(workers: EqualityWorkers) -> None:
    assert equal_without_algebra(*ENDLESS) is None
    workers.equal_many([NEEDS_ALGEBRA])  # start-up is not what is measured
    start = time.monotonic()
    grades = workers.equal_many([ENDLESS, NEEDS_ALGEBRA, ("5", "6"), (r"\sqrt{8}", r"3\sqrt{2}")])
    assert grades == [Equality(0.0, timed_out=True), YES, NO, NO]
    assert time.monotonic() - start >= 1.0


def test_an_answer_that_eats_memory_is_not_equal(workers: EqualityWorkers) -> None:
    greedy = ("5", "9**9**9**9")
    grades = workers.equal_many([greedy, NEEDS_ALGEBRA], timeout_seconds=10.0)
    assert grades[0].equal is False
    assert grades[1] == YES


def test_a_worker_killed_while_idle_is_replaced(workers: EqualityWorkers) -> None:
    assert workers.equal_many([NEEDS_ALGEBRA]) == [YES]
    (pid,) = process_ids(workers)
    os.kill(pid, signal.SIGKILL)
    assert workers.equal_many([NEEDS_ALGEBRA]) == [YES]
    assert process_ids(workers) != [pid]


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_is_replaced_and_the_answer_tried_once_more(
    workers: EqualityWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.equal_many([NEEDS_ALGEBRA])
    asked: SimpleQueue[tuple[Worker, str]] = SimpleQueue()
    original = Worker.ask
    monkeypatch.setattr(
        Worker, "ask", lambda worker, question: asked.put((worker, question.predicted)) or original(worker, question)
    )
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(workers.equal_many, [ENDLESS, NEEDS_ALGEBRA], timeout_seconds=30.0)
        for _ in range(2):  # both tries of the endless answer
            worker, predicted = asked.get(timeout=60.0)
            assert predicted == ENDLESS[1]
            time.sleep(0.05)
            worker.process.send_signal(signal.SIGKILL)
        grades = pending.result(timeout=30.0)
    assert grades == [Equality(0.0, crashed=True), YES]


def test_no_process_is_left_after_close() -> None:
    with EqualityWorkers(2) as workers:
        workers.equal_many([NEEDS_ALGEBRA, (r"\sqrt{12}", r"2\sqrt{3}")])
        pids = process_ids(workers)
        assert len(pids) == 2
    assert not any(map(is_running, pids))
    assert workers.equal_many([("1", "1")]) == [YES]  # still usable


@pytest.mark.slow
def test_no_process_is_left_when_the_caller_is_killed() -> None:
    program = (
        "from gtpo_cli.rewards import EqualityWorkers\n"
        "workers = EqualityWorkers(1, timeout_seconds=60)\n"
        "workers.equal_many([(r'\\sqrt{8}', r'2\\sqrt{2}')])\n"
        "print(workers._workers[0].process.pid, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        assert is_running(pid)
        caller.kill()
    deadline = time.monotonic() + 20.0
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


def test_a_worker_ignores_modules_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sympy.py").write_text("raise SystemExit('the wrong sympy')\n")
    monkeypatch.chdir(tmp_path)
    with EqualityWorkers(1) as workers:
        assert workers.equal_many([NEEDS_ALGEBRA]) == [YES]


def test_workers_that_cannot_start_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with EqualityWorkers(1) as workers, pytest.raises(RewardError, match=r"die while starting \(exit status 1\)"):
        workers.equal_many([NEEDS_ALGEBRA])
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with EqualityWorkers(1) as workers, pytest.raises(RewardError, match="cannot be started"):
        workers.equal_many([NEEDS_ALGEBRA])
