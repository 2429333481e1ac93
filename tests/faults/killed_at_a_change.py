"""Runs gtpo and kills it just before its n-th change of a file: `python killed_at_a_change.py N ARGUMENTS...`.

Changes are what Python announces as it happens (audit events): files opened for writing, made, renamed, removed. With
N = 0 nothing is killed, and the number of changes is printed at the end.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from pathlib import Path

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}
last, seen = int(sys.argv[1]), 0
runs = Path.cwd() / "runs"


def note(event: str, arguments: tuple[object, ...]) -> None:
    global seen
    if event not in CHANGES and not (event == "open" and isinstance(arguments[2], int) and arguments[2] & 3):
        return
    if not isinstance(arguments[0], (str, bytes, os.PathLike)):
        return
    if Path(os.fsdecode(arguments[0])).absolute().is_relative_to(runs):
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(note)
if last == 0:
    atexit.register(lambda: print(f"changes {seen}", flush=True))
sys.argv = ["gtpo", *sys.argv[2:]]

from gtpo_cli.cli.app import main  # noqa: E402  (the hook comes first)

main()
