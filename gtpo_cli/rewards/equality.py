"""Compare answers, one at a time or many at once, in processes that are killed when an answer takes too long.

`same_answer.py` and `mathematics.py` have the rules; `worker.py` applies them. The processes are plain subprocesses
with pipes. Without a fork they are safe beside torch's threads, and do not import the caller's main module again. They
survive any input; only a process that cannot start is an error.
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
from gtpo_cli.rewards.normalize import seen
from gtpo_cli.rewards.same_answer import equal, usable
from gtpo_cli.types import STEADY, Entry

# Gold answer, predicted answer, the question if a copy from it does not count, and the entry if a task scores.
Pair = tuple[str, str] | tuple[str, str, str | None] | tuple[str, str, str | None, Entry | None]

PATIENCE = 10  # seconds of wall time for each second of a worker's processor time
_START_SECONDS = 120.0  # for importing sympy on a busy machine
_MAX_FAILED_STARTS = 3
_SEE_WHY = f"to see why, run: {sys.executable} -m gtpo_cli.rewards.worker"


def answers_equal(gold: str, predicted: str, *, question: str | None = None, timeout_seconds: float = 5.0) -> bool:
    r"""Return whether `predicted` is the same answer as `gold` (docs/objective.md, section 2, and docs/rewards.md).

    Numbers compare as exact numbers (`1,319`, `$18.00`, `36/2`), LaTeX as mathematics (`\frac{1}{2}` = `0.5`), plain
    text case-folded; never by substring. An answer that takes longer than `timeout_seconds` of processor time, or
    more memory than a worker has, is not equal. A gold answer that is not usable (see `gold_is_usable`) equals nothing.

    With `question`, the answer must also be worked out. If the gold answer is a number, an expression (`9+9`) is no
    answer. A derivative, integral or other operation counts only if the gold answer has one. A formula from the
    question, even with trivial changes, counts only if the gold answer has the same form.

    The first answer that needs computer algebra starts a worker process (one to two seconds), which serves all later
    calls and ends with this process. Raises RewardError if it cannot be started.
    """
    workers = _shared_workers(os.getpid())
    return workers.equal_many([(gold, predicted, question)], timeout_seconds=timeout_seconds)[0].equal


def gold_is_usable(gold: str, *, timeout_seconds: float = 5.0) -> bool:
    r"""Return whether a gold answer can be compared: a number, mathematics that parses, plain text, or a list of these.

    Empty, unreadable (NUL) and broken (`\frac{1}{`) gold answers cannot; nothing equals them.
    """
    return _shared_workers(os.getpid()).usable_many([gold], timeout_seconds=timeout_seconds)[0]


@functools.cache
def _shared_workers(process_id: int) -> EqualityWorkers:
    """Return the worker for single questions of this process. A forked child must not read its parent's replies."""
    workers = EqualityWorkers(num_workers=1)
    atexit.register(workers.close)
    return workers


def same_text(gold: str, predicted: str) -> bool:
    """Return whether two texts are equal up to what cannot be seen: the amount of white space, invisible characters,
    full-width forms. An empty text equals nothing."""
    words = seen(gold).split()
    return bool(words) and words == seen(predicted).split()


class _NeedsAlgebraError(Exception):
    """Raised by a comparison without algebra that needs it."""


def _no_algebra(*_: Any) -> bool:
    raise _NeedsAlgebraError


def equal_without_algebra(gold: str, predicted: str, question: str | None = None) -> bool | None:
    """Return the verdict if numbers, text or structure decide it (microseconds); None if it needs a worker."""
    try:
        return equal(gold, predicted, _no_algebra, question=question)
    except _NeedsAlgebraError:
        return None


def usable_without_algebra(gold: str) -> bool | None:
    """Return `gold_is_usable` if it needs no parser; None if it needs a worker."""
    try:
        return usable(gold, _no_algebra)
    except _NeedsAlgebraError:
        return None


# -- many answers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Equality:
    """The score of an answer: 1 if it equals the gold answer, else 0; a task's own from 0 to 1. It is 0 if the question
    timed out or killed its worker twice, or if the task raised an exception (`failed` says which)."""

    score: float
    timed_out: bool = False
    crashed: bool = False
    failed: str | None = None

    @property
    def equal(self) -> bool:
        """Whether the answer is right: only a score of 1 is."""
        return self.score == 1.0


class _Question(NamedTuple):
    """A question to a worker. Without `predicted` it asks whether the gold answer is usable."""

    gold: str
    predicted: str | None
    question: str | None
    entry: Entry | None
    seconds: float


class EqualityWorkers:
    """Compares answers in `num_workers` processes (default: one for each CPU), started when first needed.

    A context manager; `close` ends the processes. Answers that need no computer algebra never reach a worker, nor does
    any if `equality` is "text" (`same_text`). `timeout_seconds` limits each question to so much processor time of its
    worker, and ten times that in wall time, without start-up. Safe to use from threads. Raises RewardError if workers
    cannot be started.
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
        """End all workers and drop pending comparisons. A later use starts new workers."""
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
        """Return the ids of the running processes, for monitoring."""
        return [worker.process.pid for worker in self._workers]

    def begin(self, pair: Pair) -> None:
        """Start to compare a pair for a later `equal_many`, only to save time."""
        self._answer(_asked(pair, self.timeout_seconds))

    def equal_many(self, pairs: Sequence[Pair], *, timeout_seconds: float | None = None) -> list[Equality]:
        """Compare each pair as `answers_equal` does, or ask the task of its entry, in the order of `pairs`.

        Equal pairs share a grade. Raises RewardError if a task cannot be loaded.
        """
        return self._answers([_asked(pair, timeout_seconds or self.timeout_seconds) for pair in pairs])

    def usable_many(self, golds: Sequence[str], *, timeout_seconds: float | None = None) -> list[bool]:
        """Return for each gold answer whether it can be compared. See `gold_is_usable`."""
        seconds = timeout_seconds or self.timeout_seconds
        return [found.equal for found in self._answers([_Question(gold, None, None, None, seconds) for gold in golds])]

    def _answers(self, questions: Sequence[_Question]) -> list[Equality]:
        try:
            begun = {question: self._answer(question) for question in dict.fromkeys(questions)}
            answers = {question: found.result() for question, found in begun.items()}
        except CancelledError as error:
            raise _ended() from error
        except BaseException:
            self.close()  # drop the rest
            raise
        with self._lock:
            for question in answers:
                self._begun.pop(question, None)
        return [answers[question] for question in questions]

    def _answer(self, question: _Question) -> Future[Equality]:
        decided = self._at_once(question)
        if decided is not None:
            answer: Future[Equality] = Future()
            answer.set_result(Equality(float(decided)))
            return answer
        with self._lock:
            if question not in self._begun:
                self._threads = self._threads or ThreadPoolExecutor(self.num_workers, "gtpo-grading")
                self._begun[question] = self._threads.submit(self._ask, question)
            return self._begun[question]

    def _at_once(self, question: _Question) -> bool | None:
        gold, predicted = question.gold, question.predicted
        if question.entry is not None:
            return None
        if self._is_text:
            return same_text(gold, gold if predicted is None else predicted)
        if predicted is None:
            return usable_without_algebra(gold)
        return equal_without_algebra(gold, predicted, question.question)

    def _ask(self, question: _Question) -> Equality:
        """Ask a worker. If it dies over the question, out of memory or killed, try once more."""
        crashes = 0
        while crashes < 2 or self._closing:  # when closing, _take raises
            worker = self._take()
            try:
                reply = worker.ask(question)
            except TimeoutError:
                self._drop(worker)
                return Equality(0.0, timed_out=True)
            except RewardError:
                self._drop(worker)
                raise
            if reply is not None:
                if reply.get("retires"):
                    self._drop(worker)
                else:
                    with self._lock:
                        self._idle.append(worker)
                return Equality(reply["score"], failed=reply.get("failed"))
            self._drop(worker)
            if worker.process.returncode == -signal.SIGPROF:  # its time is up
                return Equality(0.0, timed_out=True)
            crashes += 1
        return Equality(0.0, crashed=True)

    def _take(self) -> _Worker:
        """Return a ready worker, idle or new."""
        for _ in range(_MAX_FAILED_STARTS):
            with self._lock:
                if self._closing:
                    raise _ended()
                while self._idle:
                    worker = self._idle.pop()
                    if worker.process.poll() is None:
                        return worker
                    self._workers.remove(worker)  # it died while idle, so no question is to blame
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


def _asked(pair: Pair, seconds: float) -> _Question:
    question, entry = (*pair[2:], None, None)[:2]
    return _Question(pair[0], pair[1], question, entry, seconds)


class _Worker:
    """One grading process, which may die at any time."""

    def __init__(self) -> None:
        self._loaded = set[tuple[str, str, int | None]]()
        try:
            self.process = subprocess.Popen(
                # -P: the user's folder must not shadow the modules that a worker imports.
                [sys.executable, "-P", "-m", "gtpo_cli.rewards.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal goes only to the caller
                env=os.environ | STEADY,
            )
        except OSError as error:
            raise RewardError(f"a grading worker cannot be started: {error}; free memory or processes") from error

    def ask(self, question: _Question) -> dict[str, Any] | None:
        """Send a question and return the `reply`. A task is loaded first, outside the time limit."""
        if question.entry is not None and (task := question.entry.of_task) not in self._loaded:
            loaded = self._send({"load": task}, _START_SECONDS)
            if loaded is None:
                return None
            if error := loaded.get("error"):
                raise RewardError(error)
            self._loaded.add(task)
        return self._send(question._asdict(), PATIENCE * question.seconds)

    def _send(self, message: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return self.reply(seconds)

    def reply(self, seconds: float) -> dict[str, Any] | None:
        """Return the process's next line; None if it died. Raises TimeoutError after so many seconds."""
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
        message: dict[str, Any] = json.loads(received)
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
