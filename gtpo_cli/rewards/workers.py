"""A pool of grading workers: separate processes that are killed when an answer takes too long.

Plain subprocesses and pipes, no fork: safe beside the threads of torch, and the caller's main module is not imported
again. Anything may be thrown at the pool; only a worker that cannot start at all is an error.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from gtpo_cli.errors import RewardError
from gtpo_cli.rewards.comparison import equal, usable
from gtpo_cli.rewards.worker import PATIENCE

# Gold answer, predicted answer, and the question where an answer copied from it is none.
Pair = tuple[str, str] | tuple[str, str, str | None]

_START_SECONDS = 120.0  # importing sympy on a machine that is busy with something else
_MAX_FAILED_STARTS = 3


@dataclass(frozen=True, slots=True)
class Equality:
    """Are a gold and a predicted answer equal? Never where the question timed out or (twice) killed its worker."""

    equal: bool
    timed_out: bool = False
    crashed: bool = False


@dataclass(slots=True)
class _Task:
    """One question to a worker: `predicted` None asks whether the gold answer is usable."""

    gold: str
    predicted: str | None
    question: str | None = None
    crashes: int = 0
    result: Equality | None = None


@dataclass(eq=False, slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    deadline: float
    ready: bool = False
    task: _Task | None = None
    received: bytearray = field(default_factory=bytearray)


_LOOK_UP = 0.2  # seconds after which a call looks whether it should give up


class EqualityWorkers:
    """Grades answers in `num_workers` processes (default: one for each CPU), started when first needed.

    A context manager; `close` ends the processes. Answers that need no computer algebra never reach a worker.
    `timeout_seconds` bounds each question, in seconds of processor time of its worker, and ten times that in wall time;
    start-up is not counted. Safe to use from threads, one call at a time. Raises RewardError when workers cannot be
    started.
    """

    def __init__(self, num_workers: int | None = None, *, timeout_seconds: float = 5.0) -> None:
        self.num_workers = num_workers or _available_cpus()
        self.timeout_seconds = timeout_seconds
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._lock = threading.Lock()
        self._closing = False  # asks a call in another thread to give up

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers; a call that runs in another thread gives up. Can be used again: it starts new ones."""
        self._closing = True
        with self._lock:
            self._kill_all()
            self._closing = False

    def process_ids(self) -> list[int]:
        """The processes that run now, for whoever measures or watches them."""
        return [worker.process.pid for worker in self._workers]

    def equal_many(self, pairs: Sequence[Pair], *, timeout_seconds: float | None = None) -> list[Equality]:
        """For each (gold, predicted[, question]): are they the same answer, and with a question, is it worked out?

        In the order of `pairs`; equal pairs share a grade. See `answers_equal`.
        """
        tasks = {pair: _comparison(*pair) for pair in dict.fromkeys(pairs)}
        self._run(list(tasks.values()), timeout_seconds)
        return [_result(tasks[pair]) for pair in pairs]

    def usable_many(self, golds: Sequence[str], *, timeout_seconds: float | None = None) -> list[bool]:
        """For each gold answer: can it be compared at all? See `gold_is_usable`."""
        tasks = {gold: _Task(gold, None, result=_known(usable_without_algebra(gold))) for gold in dict.fromkeys(golds)}
        self._run(list(tasks.values()), timeout_seconds)
        return [_result(tasks[gold]).equal for gold in golds]

    def _run(self, tasks: Sequence[_Task], timeout_seconds: float | None) -> None:
        waiting = deque(task for task in tasks if task.result is None)
        timeout = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        with self._lock:
            try:
                self._serve(waiting, timeout)
            except BaseException:
                self._kill_all()  # a worker in the middle of an answer would give it to the next question
                raise

    def _serve(self, waiting: deque[_Task], timeout: float) -> None:
        while waiting or any(worker.task for worker in self._workers):
            if self._closing:
                raise RewardError("grading was ended while answers were being compared")
            busy = sum(worker.task is not None for worker in self._workers)
            while len(self._workers) < min(self.num_workers, busy + len(waiting)):
                self._workers.append(_start())
            for worker in [worker for worker in self._workers if worker.ready and worker.task is None]:
                if waiting:
                    self._ask(worker, waiting, timeout)
            for worker in self._wait():
                self._receive(worker, waiting)
            now = time.monotonic()
            for worker in [worker for worker in self._workers if worker.deadline < now]:
                self._expire(worker)

    def _ask(self, worker: _Worker, waiting: deque[_Task], timeout: float) -> None:
        if worker.process.poll() is not None:  # died while it was idle: no question is to blame
            self._drop(worker)
            return
        task = waiting.popleft()
        question = {"gold": task.gold, "predicted": task.predicted, "seconds": timeout}
        if task.question is not None:
            question["question"] = task.question
        worker.task, worker.deadline = task, time.monotonic() + PATIENCE * timeout
        assert worker.process.stdin is not None
        try:
            worker.process.stdin.write(json.dumps(question).encode() + b"\n")
            worker.process.stdin.flush()
        except BrokenPipeError:
            self._lose(worker, waiting)

    def _wait(self) -> list[_Worker]:
        """The workers that have said something or died; empty when a deadline passed first."""
        active = [worker for worker in self._workers if worker.task or not worker.ready]
        if not active:
            return []
        with selectors.DefaultSelector() as selector:
            for worker in active:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            patience = max(0.0, min(worker.deadline for worker in active) - time.monotonic())
            patience = min(patience, _LOOK_UP)
            return [key.data for key, _ in selector.select(patience)]

    def _receive(self, worker: _Worker, waiting: deque[_Task]) -> None:
        assert worker.process.stdout is not None
        chunk = os.read(worker.process.stdout.fileno(), 65536)
        if not chunk:
            self._lose(worker, waiting)
            return
        worker.received += chunk
        if not worker.received.endswith(b"\n"):
            return
        reply = json.loads(worker.received)
        worker.received.clear()
        worker.deadline = float("inf")
        if worker.task is None:
            worker.ready = True
            self._failed_starts = 0
        else:
            worker.task.result = Equality(reply["verdict"])
            worker.task = None
            if reply.get("retires"):
                self._drop(worker)

    def _lose(self, worker: _Worker, waiting: deque[_Task]) -> None:
        """A worker died: out of memory, crashed, or killed from outside. Its question gets one more try."""
        self._drop(worker)
        task = worker.task
        if task is None:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise RewardError(
                    f"grading workers die while starting (exit status {worker.process.returncode}); to see why, run: "
                    f"{sys.executable} -m gtpo_cli.rewards.worker"
                )
            return
        task.crashes += 1
        if worker.process.returncode == -signal.SIGPROF:  # its time is up
            task.result = Equality(equal=False, timed_out=True)
        elif task.crashes < 2:
            waiting.appendleft(task)
        else:
            task.result = Equality(equal=False, crashed=True)

    def _expire(self, worker: _Worker) -> None:
        self._drop(worker)
        if worker.task is None:
            raise RewardError(
                f"a grading worker did not start within {_START_SECONDS:.0f} s; to see why, run: "
                f"{sys.executable} -m gtpo_cli.rewards.worker"
            )
        worker.task.result = Equality(equal=False, timed_out=True)

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        _kill(worker)

    def _kill_all(self) -> None:
        for worker in self._workers:
            _kill(worker)
        self._workers.clear()


class _NeedsAlgebraError(Exception):
    """Raised in place of an answer by a comparison that has no algebra at hand."""


def _no_algebra(*_: Any) -> bool:
    raise _NeedsAlgebraError


def equal_without_algebra(gold: str, predicted: str, question: str | None = None) -> bool | None:
    """The verdict where numbers, text or structure decide it (microseconds); None where a worker must."""
    try:
        return equal(gold, predicted, _no_algebra, question=question)
    except _NeedsAlgebraError:
        return None


def usable_without_algebra(gold: str) -> bool | None:
    """`gold_is_usable` where it needs no parser; None where a worker must."""
    try:
        return usable(gold, _no_algebra)
    except _NeedsAlgebraError:
        return None


def _start() -> _Worker:
    try:
        process = subprocess.Popen(
            # -P: the user's folder must not shadow the modules that a worker imports.
            [sys.executable, "-P", "-m", "gtpo_cli.rewards.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for the caller alone
        )
    except OSError as error:
        raise RewardError(f"a grading worker cannot be started: {error}; free memory or processes") from error
    return _Worker(process, deadline=time.monotonic() + _START_SECONDS)


def _kill(worker: _Worker) -> None:
    worker.process.kill()
    for pipe in (worker.process.stdin, worker.process.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except BrokenPipeError:  # an unsent question in the buffer
            continue
    worker.process.wait()


def _comparison(gold: str, predicted: str, question: str | None = None) -> _Task:
    return _Task(gold, predicted, question, result=_known(equal_without_algebra(gold, predicted, question)))


def _known(verdict: bool | None) -> Equality | None:
    return None if verdict is None else Equality(verdict)


def _result(task: _Task) -> Equality:
    assert task.result is not None
    return task.result


def _available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
