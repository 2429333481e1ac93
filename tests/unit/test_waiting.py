from __future__ import annotations

import threading
import time

import pytest

from gtpo_cli.terminal.signals import Waiting, duration


class Said:
    """Takes lines; `wait(n)` returns when there are n."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._more = threading.Condition()

    def __call__(self, text: str) -> None:
        with self._more:
            self.lines.append(text)
            self._more.notify()

    def wait(self, count: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: len(self.lines) >= count, timeout=60)


def test_a_short_wait_says_nothing() -> None:
    said = Said()
    with Waiting(said, "loading a model"):
        pass
    assert said.lines == []


def test_a_long_wait_says_how_long_it_has_taken_and_nothing_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gtpo_cli.terminal.signals.FIRST_SECONDS", 0.02)
    said = Said()
    with Waiting(said, "loading a model"):
        said.wait(3)
    spoken = list(said.lines)
    time.sleep(0.2)
    assert said.lines == spoken
    assert set(spoken) == {"loading a model: 0 s so far"}


def test_counted_work_says_how_far_it_is_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 were done before; 20 in 30 s since then, so that the other 40 take a minute."""
    now = 1000.0
    waiting = Waiting(lambda text: None, "<H>_ini")
    monkeypatch.setattr("gtpo_cli.terminal.signals.time.monotonic", lambda: now)
    waiting.count(40, 100)
    assert waiting.so_far() == "<H>_ini: 40 of 100 problems"
    now += 30.0
    waiting.count(60, 100)
    assert waiting.so_far() == "<H>_ini: 60 of 100 problems, 1 min 00 s left"


@pytest.mark.parametrize(("seconds", "words"), [(12.4, "12 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")])
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words
