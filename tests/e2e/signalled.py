"""gtpo, which sends itself a signal as soon as a step is logged: signalled.py NUMBER STEP and gtpo's arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from gtpo_cli.cli.app import main
from gtpo_cli.tracking.jsonl import JsonlTracker

_, number, last, *arguments = sys.argv
append = JsonlTracker.log


def log(self: JsonlTracker, step: int, metrics: Mapping[str, float]) -> None:
    append(self, step, metrics)
    if step == int(last):
        os.kill(os.getpid(), int(number))


JsonlTracker.log = log  # type: ignore[method-assign]
sys.argv = ["gtpo", *arguments]
main()
