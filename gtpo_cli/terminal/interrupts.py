"""Ctrl-C, SIGTERM (a pre-empted machine) and SIGHUP (a closed terminal).

Training first finishes and saves the step. Everything else ends at once with a message.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from gtpo_cli.errors import WORDS, Terminated
from gtpo_cli.terminal.waiting import say_at_once

SAME_SECONDS = 1.0


def raise_ended(number: int, frame: FrameType | None) -> None:
    """Raise Terminated; a signal handler."""
    raise Terminated(number)


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
