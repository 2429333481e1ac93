"""A run's process where there is a GPU; what is forked where there is none, tests/e2e/test_sweep_command.py tries."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from gtpo_cli.sweeps import processes


def ended(process: processes.Process) -> int:
    while (code := process.poll()) is None:
        time.sleep(0.05)
    return code


def test_without_a_server_it_is_started_anew_and_the_log_says_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(processes, "_fork", refused)
    log = tmp_path / "log"
    assert ended(processes.start_training(["--recipe", "nowhere.yaml"], log)) == 2
    assert "nowhere.yaml" in log.read_text()


def test_a_signal_to_one_that_ended_just_now_is_nothing() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    processes.Process(gone.pid, lambda: None).send_signal(signal.SIGTERM)


def test_with_a_gpu_it_is_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_GPU_DRIVERS", (tmp_path,))  # it is there
    monkeypatch.delattr(processes, "multiprocessing")
    log = tmp_path / "log"
    log.write_text("before\n")
    process = processes.start_training(["--recipe", "nowhere.yaml"], log)
    code = ended(process)
    process.send_signal(signal.SIGKILL)  # to nobody
    assert (code, process.poll()) == (2, 2)
    assert log.read_text().startswith("before\nerror: ")
    assert "nowhere.yaml" in log.read_text()
