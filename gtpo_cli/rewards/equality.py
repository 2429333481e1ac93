"""Is it the same answer? One question, or many at once in processes that are killed when an answer takes too long.

The rules are in `same_answer.py` and `mathematics.py`, in `worker.py`. Plain subprocesses and pipes,
no fork: safe beside the threads of torch, and the caller's main module is not imported again. Anything may be thrown at
the processes; only one that cannot start at all is an error.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from gtpo_cli.errors import RewardError
from gtpo_cli.rewards.same_answer import equal, usable

# Gold answer, predicted answer, and the question where an answer copied from it is none.
Pair = tuple[str, str] | tuple[str, str, str | None]

PATIENCE = 10  # seconds of wall time for each second of a worker's processor time
_START_SECONDS = 120.0  # importing sympy on a machine that is busy with something else
_MAX_FAILED_STARTS = 3
_SEE_WHY = f"to see why, run: {sys.executable} -m gtpo_cli.rewards.worker"


def answers_equal(gold: str, predicted: str, *, question: str | None = None, timeout_seconds: float = 5.0) -> bool:
    r"""Is `predicted` the same answer as `gold`? docs/objective.md, section 2, and docs/rewards.md.

    Numbers compare as exact numbers (`1,319`, `$18.00`, `36/2`), LaTeX as mathematics (`\frac{1}{2}` = `0.5`), plain
    text case-folded; never by substring. An answer that takes longer than `timeout_seconds` of processor time, or
    more memory than a worker has, is not equal. A gold answer that is not usable (see `gold_is_usable`) equals nothing.

    With `question`, the answer must be worked out as well: an expression (`9+9`) does not answer a gold answer that is
    a number, a derivative, integral or other operation does not answer one that has none, and a formula that stands in
    the question, alone or with a change that changes nothing, answers only a gold answer that is written so.

    The first answer that needs computer algebra starts a worker process (one to two seconds), which serves all later
    calls and ends with this process. Raises RewardError when it cannot be started.
    """
    workers = _shared_workers(os.getpid())
    return workers.equal_many([(gold, predicted, question)], timeout_seconds=timeout_seconds)[0].equal


def gold_is_usable(gold: str, *, timeout_seconds: float = 5.0) -> bool:
    r"""Can the gold answer be compared: a number, mathematics that parses, or plain text; or a list of these?

    Empty, unreadable (NUL) and broken (`\frac{1}{`) gold answers cannot; nothing equals them.
    """
    return _shared_workers(os.getpid()).usable_many([gold], timeout_seconds=timeout_seconds)[0]


@functools.cache
def _shared_workers(process_id: int) -> EqualityWorkers:
    """One worker for all single questions of this process; a forked child must not read its parent's replies."""
    workers = EqualityWorkers(num_workers=1)
    atexit.register(workers.close)
    return workers


def same_text(gold: str, predicted: str) -> bool:
    """Equal, character by character, but for how much white space stands where there is some. Empty equals nothing."""
    return bool(gold.split()) and gold.split() == predicted.split()


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


# -- many answers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Equality:
    """Are a gold and a predicted answer equal? Never where the question timed out or (twice) killed its worker."""

    equal: bool
    timed_out: bool = False
    crashed: bool = False


class _Question(NamedTuple):
    """What a worker is asked; without `predicted`: is the gold answer usable?"""

    gold: str
    predicted: str | None
    question: str | None
    seconds: float


class EqualityWorkers:
    """Compares answers in `num_workers` processes (default: one for each CPU), started when first needed.

    A context manager; `close` ends the processes. Answers that need no computer algebra never reach a worker, and none
    does where `equality` is "text" (`same_text`). `timeout_seconds` bounds each question, in seconds of processor time
    of its worker, and ten times that in wall time; start-up is not counted. Safe to use from threads. Raises
    RewardError when workers cannot be started.
    """

    def __init__(
        self,
        num_workers: int | None = None,
        *,
        timeout_seconds: float = 5.0,
        equality: Literal["mathematics", "text"] = "mathematics",
    ) -> None:
        self.num_workers = num_workers or _available_cpus()
        self.timeout_seconds = timeout_seconds
        self._is_text = equality == "text"
        self._lock = threading.Lock()  # of all below
        self._threads: ThreadPoolExecutor | None = None  # each waits for one worker at a time
        self._begun: dict[_Question, Future[Equality]] = {}
        self._workers: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._closing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers; what is not compared yet is not any more. Can be used again: it starts new ones."""
        with self._lock:
            self._closing = True
            threads, self._threads = self._threads, None
            self._begun.clear()
            for worker in self._workers:
                worker.process.kill()
        if threads is not None:
            threads.shutdown(cancel_futures=True)
        with self._lock:
            for worker in self._workers:
                worker.end()
            self._workers, self._idle, self._closing = [], [], False

    def process_ids(self) -> list[int]:
        """The processes that run now, for whoever measures or watches them."""
        return [worker.process.pid for worker in self._workers]

    def begin(self, gold: str, predicted: str, question: str | None = None) -> None:
        """Start to compare a pair that `equal_many` will be asked for; nothing but time depends on it."""
        self._answer(_Question(gold, predicted, question, self.timeout_seconds))

    def equal_many(self, pairs: Sequence[Pair], *, timeout_seconds: float | None = None) -> list[Equality]:
        """For each (gold, predicted[, question]): are they the same answer, and with a question, is it worked out?

        In the order of `pairs`; equal pairs share a grade. See `answers_equal`.
        """
        seconds = timeout_seconds or self.timeout_seconds
        return self._answers([_Question(pair[0], pair[1], *(pair[2:] or (None,)), seconds) for pair in pairs])

    def usable_many(self, golds: Sequence[str], *, timeout_seconds: float | None = None) -> list[bool]:
        """For each gold answer: can it be compared at all? See `gold_is_usable`."""
        seconds = timeout_seconds or self.timeout_seconds
        return [found.equal for found in self._answers([_Question(gold, None, None, seconds) for gold in golds])]

    def _answers(self, questions: Sequence[_Question]) -> list[Equality]:
        try:
            begun = {question: self._answer(question) for question in dict.fromkeys(questions)}
            answers = {question: found.result() for question, found in begun.items()}
        except CancelledError as error:
            raise _ended() from error
        except BaseException:
            self.close()  # nobody waits for the rest
            raise
        with self._lock:
            for question in answers:
                self._begun.pop(question, None)
        return [answers[question] for question in questions]

    def _answer(self, question: _Question) -> Future[Equality]:
        decided = self._at_once(question)
        if decided is not None:
            answer: Future[Equality] = Future()
            answer.set_result(Equality(decided))
            return answer
        with self._lock:
            if question not in self._begun:
                self._threads = self._threads or ThreadPoolExecutor(self.num_workers, "gtpo-grading")
                self._begun[question] = self._threads.submit(self._ask, question)
            return self._begun[question]

    def _at_once(self, question: _Question) -> bool | None:
        gold, predicted = question.gold, question.predicted
        if self._is_text:
            return same_text(gold, gold if predicted is None else predicted)
        if predicted is None:
            return usable_without_algebra(gold)
        return equal_without_algebra(gold, predicted, question.question)

    def _ask(self, question: _Question) -> Equality:
        """A worker's answer. One that dies over the question, out of memory or killed, leaves it one more try."""
        crashes = 0
        while crashes < 2 or self._closing:  # then no worker is to be had, which raises
            worker = self._take()
            try:
                reply = worker.ask(question)
            except TimeoutError:
                self._drop(worker)
                return Equality(equal=False, timed_out=True)
            if reply is not None:
                if reply.get("retires"):
                    self._drop(worker)
                else:
                    with self._lock:
                        self._idle.append(worker)
                return Equality(reply["verdict"])
            self._drop(worker)
            if worker.process.returncode == -signal.SIGPROF:  # its time is up
                return Equality(equal=False, timed_out=True)
            crashes += 1
        return Equality(equal=False, crashed=True)

    def _take(self) -> _Worker:
        """A worker that is ready: an idle one, or a new one."""
        for _ in range(_MAX_FAILED_STARTS):
            with self._lock:
                if self._closing:
                    raise _ended()
                while self._idle:
                    worker = self._idle.pop()
                    if worker.process.poll() is None:
                        return worker
                    self._workers.remove(worker)  # died while it was idle: no question is to blame
                    worker.end()
                worker = _Worker()
                self._workers.append(worker)
            try:
                if worker.reply(_START_SECONDS):
                    return worker
            except TimeoutError:
                self._drop(worker)
                raise RewardError(f"a grading worker did not start within {_START_SECONDS:.0f} s; {_SEE_WHY}") from None
            self._drop(worker)
        status = worker.process.returncode
        raise RewardError(f"grading workers die while starting (exit status {status}); {_SEE_WHY}")

    def _drop(self, worker: _Worker) -> None:
        worker.end()
        with self._lock:
            self._workers.remove(worker)


class _Worker:
    """One grading process, which may die at any time."""

    def __init__(self) -> None:
        try:
            self.process = subprocess.Popen(
                # -P: the user's folder must not shadow the modules that a worker imports.
                [sys.executable, "-P", "-m", "gtpo_cli.rewards.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is for the caller alone
            )
        except OSError as error:
            raise RewardError(f"a grading worker cannot be started: {error}; free memory or processes") from error

    def ask(self, question: _Question) -> dict[str, bool] | None:
        """As `reply`, to a question."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question._asdict()).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return self.reply(PATIENCE * question.seconds)

    def reply(self, seconds: float) -> dict[str, bool] | None:
        """The next line of the process; None where it died. Raises TimeoutError after so many seconds."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        received = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(self.process.stdout.fileno(), 65536)
                if not chunk:
                    return None
                received += chunk
        message: dict[str, bool] = json.loads(received)
        return message

    def end(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # an unsent question in the buffer
                continue
        self.process.wait()


def _ended() -> RewardError:
    return RewardError("grading was ended while answers were being compared")


def _available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
