"""Grading that goes on in the worker processes while the caller samples or trains. The grades are the same."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

from gtpo_cli.rewards.workers import Equality, EqualityWorkers, Pair, equal_without_algebra


class GradingAhead:
    """Pairs of answers are named as they come up (`begin`) and asked for later (`equal_many`).

    What numbers, text or structure decide is decided at once; a thread hands the rest to the workers, all that wait at
    a time.
    """

    def __init__(self, workers: EqualityWorkers) -> None:
        self._workers = workers
        self._grades: dict[Pair, Equality | None] = {}  # None: begun
        self._waiting: list[Pair] = []
        self._lock = threading.Lock()  # of the two above
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gtpo-grading")
        self._running: Future[None] | None = None

    def begin(self, gold: str, predicted: str, question: str | None = None) -> None:
        """Start grading this pair, unless it is graded or waits already."""
        pair: Pair = (gold, predicted) if question is None else (gold, predicted, question)
        with self._lock:
            if pair in self._grades:
                return
            verdict = equal_without_algebra(*pair)
            self._grades[pair] = None if verdict is None else Equality(verdict)
            if verdict is not None:
                return
            self._waiting.append(pair)
            if self._running is None or self._running.done():
                self._running = self._thread.submit(self._work)

    def equal_many(self, pairs: Sequence[Pair]) -> list[Equality]:
        """The grades of these pairs, in order; waits for what is not there yet. Raises RewardError."""
        for pair in pairs:
            self.begin(*pair)
        while self._running is not None:
            running, self._running = self._running, None
            running.result()
            with self._lock:
                if self._waiting:  # came up while the thread was about to end
                    self._running = self._thread.submit(self._work)
        grades = [self._grades[pair] for pair in pairs]
        assert None not in grades
        return cast(list[Equality], grades)

    def forget(self) -> None:
        """Drop the grades that are there."""
        with self._lock:
            self._grades = {pair: grade for pair, grade in self._grades.items() if grade is None}

    def close(self) -> None:
        """End the thread and the workers; what was not graded is not any more."""
        with self._lock:
            self._waiting.clear()
        self._workers.close()
        self._thread.shutdown(cancel_futures=True)

    def _work(self) -> None:
        while True:
            with self._lock:
                batch, self._waiting = self._waiting, []
            if not batch:
                return
            try:
                grades = dict(zip(batch, self._workers.equal_many(batch), strict=True))
            except BaseException:
                with self._lock:
                    for pair in batch:
                        del self._grades[pair]  # may be asked again
                raise
            with self._lock:
                self._grades |= grades
