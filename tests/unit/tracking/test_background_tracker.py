"""A tracker behind a thread: order, errors, and one that blocks."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from gtpo_cli.tracking.wandb import BackgroundTracker


class Recorder:
    """Notes what it gets; waits for `gate` before each step, and fails at step `fails`."""

    def __init__(self, *, fails: int | None = None, gate: threading.Event | None = None) -> None:
        self.fails, self.gate = fails, gate
        self.steps: list[int] = []
        self.closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.gate is not None:
            self.gate.wait()
        if step == self.fails:
            raise ConnectionError(f"lost at {step}")
        self.steps.append(step)

    def close(self) -> None:
        self.closed = True


def test_steps_arrive_in_order_and_all_before_it_closes() -> None:
    recorder = Recorder()
    tracker = BackgroundTracker(recorder, close_seconds=10)
    for step in range(500):
        tracker.log(step, {"optim/loss": 1.0})
    tracker.close()
    assert recorder.steps == list(range(500))
    assert recorder.closed


def test_a_failure_is_raised_by_the_next_call_and_the_tracker_is_closed() -> None:
    recorder = Recorder(fails=2)
    tracker = BackgroundTracker(recorder, close_seconds=10)
    for step in (1, 2):
        tracker.log(step, {})
    tracker._thread.join(10)
    with pytest.raises(ConnectionError, match="lost at 2"):
        tracker.log(3, {})
    assert recorder.closed
    tracker.close()  # told once
    assert recorder.steps == [1]
