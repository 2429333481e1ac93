"""What is said during a long wait: nothing while it is short, then a line now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

FIRST_SECONDS = 30.0
MOST_SECONDS = 300.0


class Waiting(AbstractContextManager["Waiting"]):
    """Around work that may take minutes: from a thread of its own it tells `say` that `what` goes on, and how far it
    is, after half a minute, then after twice as long each time, at last every five minutes."""

    def __init__(self, say: Callable[[str], None], what: str, *, unit: str = "problem") -> None:
        self._say, self._what, self._unit = say, what, unit
        self._started = time.monotonic()
        self._counted: tuple[int, int] | None = None
        self._before = 0  # done when it was counted first: an evaluation that goes on
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def count(self, done: int, total: int) -> None:
        """How many of all units are done; the time left is reckoned from those done since the first call."""
        if self._counted is None:
            self._before, self._started = done, time.monotonic()
        self._counted = done, total

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _speak(self) -> None:
        pause = FIRST_SECONDS
        while not self._over.wait(pause):
            with suppress(OSError):  # nobody reads: whoever does the work hears of it at the next line of its own
                self._say(self.so_far())
            pause = min(2 * pause, MOST_SECONDS)

    def so_far(self) -> str:
        """The line."""
        took = time.monotonic() - self._started
        if self._counted is None:
            return f"{self._what}: {duration(took)} so far"
        done, total = self._counted
        new = done - self._before
        left = f", {duration(took / new * (total - done))} left" if new else ""
        return f"{self._what}: {done} of {total} {self._unit}{'' if total == 1 else 's'}{left}"


def stage(say: Callable[[str], None], what: str) -> Waiting:
    """Say what begins now, and with `with` that it goes on."""
    say(what)
    return Waiting(say, what)


def duration(seconds: float) -> str:
    """`1 h 05 min`, `3 min 20 s`, `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
