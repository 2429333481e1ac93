"""Ctrl-C, SIGTERM (a pre-empted machine) and SIGHUP (a closed terminal): in training, the step is finished and saved
first; everywhere else they end the program with a word."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from gtpo_cli.errors import WORDS, Terminated

SAME_SECONDS = 1.0


def raise_ended(number: int, frame: FrameType | None) -> None:
    """A signal handler."""
    raise Terminated(number)


def ending_signals() -> list[signal.Signals]:
    """SIGTERM and SIGHUP; one that whoever started us has us ignore (nohup) stays ignored."""
    return [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]


def say_at_once(text: str) -> None:
    """A line on standard error, from a signal handler: print might have been interrupted in the middle of a line."""
    with suppress(OSError):  # the terminal is gone
        os.write(2, f"\n{text}\n".encode())


@contextmanager
def interrupt_flag(*, quiet: bool = False) -> Iterator[list[int]]:
    """The signals that came, Ctrl-C, SIGTERM or SIGHUP; a second one interrupts at once.

    The first is answered with a line, unless `quiet`. What comes within a second of it still counts as the first, but
    for Ctrl-C: who ends a program may tell it and its process group, as timeout(1) does.
    """
    flag: list[int] = []
    first = math.inf

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if not flag:
            first = time.monotonic()
            if not quiet:
                say_at_once(
                    f"{reason([number])}: the step under way is finished and saved; a second Ctrl-C or SIGTERM ends at "
                    "once, and what came after the last checkpoint is lost"
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
    """In the word that `gtpo train` ends with."""
    return next(word for number, word in WORDS.items() if number in signals)
