"""Ctrl-C and SIGTERM (a pre-empted machine): the step is finished and saved first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_flag() -> Iterator[list[int]]:
    """The signals that came, Ctrl-C or SIGTERM; the second Ctrl-C interrupts at once."""
    flag: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        flag.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def reason(signals: list[int]) -> str:
    """In the word that `gtpo train` ends with."""
    return "terminated" if signal.SIGTERM in signals else "interrupted"
