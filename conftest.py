"""For every test."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def hangups_end_programs() -> None:
    """Also where pytest was started with nohup: programs inherit that SIGHUP is ignored, and some tests send it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
