"""The command `gtpo` as a user starts it, and what its runs must have in common. For e2e and fault tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
GTPO = [str(Path(sys.executable).parent / "gtpo")]
SIGNALLED = str(ROOT / "tests/e2e/signalled.py")  # gtpo, which stops itself at a step

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Prepared = Callable[..., None]


_AT_START = dict(os.environ)  # before libraries that tests import here add to it


def environment() -> dict[str, str]:
    """No network, no key, nothing of the machine's own settings that could change a result."""
    kept = {name: value for name, value in _AT_START.items() if not name.startswith(("WANDB_", "HF_", "PYTEST_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # so that "next: gtpo ..." is short
    return kept | {"HF_HUB_OFFLINE": "1", "COLUMNS": "160", "PATH": path}


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


MEASURED = ("time/", "speed/", "memory/", "eval/time")


def comparable(run: Path) -> list[dict[str, Any]]:
    """The metrics that a repetition must repeat bit for bit: all but what was measured with a clock."""
    return [{k: v for k, v in row.items() if not k.startswith(MEASURED)} for row in metrics(run)]


def contents(run: Path) -> dict[str, Any]:
    """What a repetition must repeat bit for bit beside its metrics: weights, optimiser, random states, samples, and
    which checkpoints there are, with what they say of the best one."""
    checkpoints = sorted((run / "checkpoints").glob("step-*"))
    newest = checkpoints[-1]
    files = [*(newest / "model").glob("*.safetensors"), *(run / "samples").glob("*")]
    training = torch.load(newest / "training.pt", weights_only=True)
    states = [json.loads((folder / "state.json").read_text()) | {"metrics_bytes": None} for folder in checkpoints]
    return {file.name: file.read_bytes() for file in files} | {"states": states, "training": _plain(training)}


def _plain(value: Any) -> Any:
    """Tensors as bytes, so that == compares them; NaN would equal itself too."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
