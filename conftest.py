"""For every test."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def signals_end_programs() -> None:
    """Also where pytest was started with nohup or in the background: programs inherit that SIGHUP and SIGINT are
    ignored, and some tests send them."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
