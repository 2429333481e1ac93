"""Start `gtpo train` for a sweep. Each run is a process that ends with the sweep.

On Linux without a GPU, it is forked from a server that has already imported the libraries, because importing takes as
long as many steps of a small model. Elsewhere it is started normally, because a GPU driver must not be loaded before a
fork.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gtpo_cli.files import append_to
from gtpo_cli.training.interrupts import ending_signals

_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))  # CUDA, ROCm, WSL
_SAFE_PATH = "PYTHONSAFEPATH"
# The imports of a run, except its model's classes. Llama's classes, for the tiny model, import what all models need.
_PRELOADED = [
    "gtpo_cli.sweeps.fork_server", "gtpo_cli.cli.app", "gtpo_cli.cli.train", "gtpo_cli.planning.readiness",
    "gtpo_cli.training.loop", "gtpo_cli.tracking.display",
    "gtpo_cli.models.transformers_policy", "gtpo_cli.generation.transformers_sampler",
    "transformers.models.llama.modeling_llama", "peft",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Process:
    """A running process. `poll` returns its exit code, or None while it runs."""

    pid: int
    poll: Callable[[], int | None]

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it may end right now
                os.kill(self.pid, number)


def start_training(arguments: list[str], log: Path) -> Process:
    """Start `gtpo train` with these arguments, without input, and with its output appended to `log`."""
    with append_to(log) as output:
        if sys.platform == "linux" and not any(driver.exists() for driver in _GPU_DRIVERS):
            with suppress(OSError, EOFError):  # the server fails, e.g. for a long TMPDIR; the log says why
                return _fork(arguments, log)
        command = [sys.executable, "-P", "-m", "gtpo_cli", "train", *arguments]
        started = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent
        )
    return Process(started.pid, started.poll)


def _fork(arguments: list[str], log: Path) -> Process:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    forked = context.Process(target=_train, args=(arguments, log))
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"  # the server must not import from the working folder
    try:
        forked.start()
    finally:
        os.environ.pop(_SAFE_PATH)
        os.environ.update({_SAFE_PATH: before} if before is not None else {})
    assert forked.pid is not None
    return Process(forked.pid, lambda: forked.exitcode)


def end_with_parent() -> None:
    """End this process with its parent (Linux), because two processes must never write one run folder.

    A new session keeps the terminal's Ctrl-C away, so that runs get only the sweep's signal.
    """
    os.setsid()
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _train(arguments: list[str], log: Path) -> None:
    """Do in a forked process what `python -m gtpo_cli train` does in a new one."""
    end_with_parent()
    for number in ending_signals():
        signal.signal(number, signal.SIG_DFL)  # the server's handler
    with Path(os.devnull).open("rb") as nothing, append_to(log) as output:
        for file, descriptor in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(file.fileno(), descriptor)
    sys.argv = ["gtpo", "train", *arguments]
    try:
        runpy.run_module("gtpo_cli", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing would skip them
