"""Runs the command `gtpo` as a user does: in a process of its own, in an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
GTPO = [str(Path(sys.executable).parent / "gtpo")]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and models beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("no folder shared/ beside the checkout: real data and models are not here")
    return SHARED


def environment() -> dict[str, str]:
    """No network, no key, nothing of the machine's own settings that could change a result."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "HF_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # so that "next: gtpo ..." is short
    return kept | {"HF_HUB_OFFLINE": "1", "COLUMNS": "160", "PATH": path}


@pytest.fixture
def gtpo(tmp_path: Path) -> Run:
    """gtpo("train", "--quiet") -> the finished process, with text output. Fails the test on an unexpected exit code."""

    def run(*arguments: str, code: int = 0, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*GTPO, *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=timeout, env=environment(), stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


MEASURED = ("time/", "speed/", "memory/")


def comparable(run: Path) -> list[dict[str, Any]]:
    """The metrics that a repetition must repeat bit for bit: all but what was measured with a clock."""
    return [{k: v for k, v in row.items() if not k.startswith(MEASURED)} for row in metrics(run)]
