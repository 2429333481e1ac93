"""A tracker that may block (a network, another process) behind a thread, so that training never waits for it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping

from gtpo_cli.tracking.tracker import Tracker

_BEHIND = 1000  # steps that may wait; a tracker that is further behind is stuck


class BackgroundTracker:
    """Implements `Tracker`. Errors of the tracker behind it are raised by the next call.

    `log` returns at once; it raises TimeoutError when the tracker is a thousand steps behind. `close` waits
    `close_seconds` at most for what is left, and raises TimeoutError when that is not enough.
    """

    def __init__(self, tracker: Tracker, *, close_seconds: float) -> None:
        self._tracker = tracker
        self._close_seconds = close_seconds
        self._steps: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(_BEHIND)
        self._failure: Exception | None = None
        self._stuck = False
        # A daemon: where the tracker hangs for ever, the process can still end.
        self._thread = threading.Thread(target=self._work, name=f"gtpo-{type(tracker).__name__}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._raise_failure()
        try:
            self._steps.put_nowait((step, dict(metrics)))
        except queue.Full:
            self._stuck = True
            raise TimeoutError(f"it has not answered for {_BEHIND} steps") from None

    def close(self) -> None:
        """Waits for a tracker that answers; one that was found stuck is left behind at once."""
        deadline = time.monotonic() + (0.0 if self._stuck else self._close_seconds)
        with contextlib.suppress(queue.Full):  # then the thread is alive below
            self._steps.put(None, timeout=max(0.0, deadline - time.monotonic()))
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            raise TimeoutError(f"it was not done within {self._close_seconds:.0f} s")
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _work(self) -> None:
        try:
            while (item := self._steps.get()) is not None:
                self._tracker.log(*item)
        except Exception as error:  # noqa: BLE001 - a tracker is foreign code; told by the next call
            self._failure = error
        try:
            self._tracker.close()
        except Exception as error:  # noqa: BLE001 - as above; the first failure counts
            self._failure = self._failure or error
