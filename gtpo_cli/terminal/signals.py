"""Ctrl-C, SIGTERM (a pre-empted machine) and SIGHUP (a closed terminal), and lines about long waits: none at
first, then one now and then.

On a signal training first finishes and saves the step. Everything else ends at once with a message.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType

from gtpo_cli.errors import WORDS, Terminated

FIRST_SECONDS = 30.0
MOST_SECONDS = 300.0


class Waiting(AbstractContextManager["Waiting"]):
    """Reports progress of the work in the block, which may take minutes.

    From its own thread it sends `say` a line about `what` after half a minute, then after twice as long each time, at
    most five minutes.
    """

    def __init__(self, say: Callable[[str], None], what: str, *, unit: str = "problem") -> None:
        self._say, self._what, self._unit = say, what, unit
        self._started = time.monotonic()
        self._counted: tuple[int, int] | None = None
        self._now = ""
        self._before = 0  # units already done at the first count, in a resumed evaluation
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def count(self, done: int, total: int, now: str = "") -> None:
        """Set how many units are done, and words for what is going on. The time left is estimated from those done since
        the first call."""
        self._now = f" ({now})" if now else ""
        if self._counted is None:
            self._before, self._started = done, time.monotonic()
        self._counted = done, total

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _speak(self) -> None:
        pause = FIRST_SECONDS
        while not self._over.wait(pause):
            with suppress(OSError):  # standard output was closed; the main thread finds out at its next line
                self._say(self.so_far())
            pause = min(2 * pause, MOST_SECONDS)

    def so_far(self) -> str:
        """Return the current progress line."""
        took = time.monotonic() - self._started
        if self._counted is None:
            return f"{self._what}: {duration(took)} so far"
        done, total = self._counted
        new = done - self._before
        left = f", {duration(took / new * (total - done))} left" if new else ""
        return f"{self._what}: {done} of {total} {self._unit}{'' if total == 1 else 's'}{left}{self._now}"


def stage(say: Callable[[str], None], what: str) -> Waiting:
    """Say what begins now. Used with `with`, also report its progress."""
    say(what)
    return Waiting(say, what)


def duration(seconds: float) -> str:
    """Format seconds as `1 h 05 min`, `3 min 20 s` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def say_at_once(text: str) -> None:
    """Write a line to standard error from a signal handler, which may have interrupted a print."""
    with suppress(OSError):  # the terminal is gone
        os.write(2, f"\n{text}\n".encode())


SAME_SECONDS = 1.0
AGAIN_SECONDS = 0.01


def raise_ended(number: int, frame: FrameType | None) -> None:
    """Raise Terminated; a signal handler."""
    raise Terminated(number)


def raise_again(dropped: sys.UnraisableHookArgs) -> None:
    """Send a signal again whose exception Python drops, since it came up in a finalizer or a callback.

    For sys.unraisablehook. The signal comes a moment later, from a thread, when the finalizer may be over.
    """
    end = dropped.exc_value
    if isinstance(end, (KeyboardInterrupt, Terminated)):
        number = end.number if isinstance(end, Terminated) else signal.SIGINT
        threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number)).start()
    else:
        sys.__unraisablehook__(dropped)


def ending_signals() -> list[signal.Signals]:
    """Return SIGTERM and SIGHUP, except one that the parent process has set to be ignored (nohup)."""
    return [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def interrupt_flag(answer: Callable[[str], None] = say_at_once) -> Iterator[list[int]]:
    """Collect the first signal (Ctrl-C, SIGTERM or SIGHUP) in the yielded list; a second one interrupts at once.

    The first gets a text in answer, from within the signal handler. Signals within a second of it, other than Ctrl-C,
    count as part of the first, since timeout(1) and others signal both the process and its group.
    """
    flag: list[int] = []
    first = math.inf

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if not flag:
            first = time.monotonic()
            answer(
                f"{reason([number])}: finishing and saving the current step; a second Ctrl-C or SIGTERM ends at once "
                "and loses the steps since the last checkpoint"
            )
        elif time.monotonic() - first > SAME_SECONDS:
            raise_ended(number, frame)
        flag.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, *ending_signals())}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def reason(signals: Sequence[int]) -> str:
    """Return the word for the signals with which `gtpo train` ends."""
    return next(word for number, word in WORDS.items() if number in signals)
