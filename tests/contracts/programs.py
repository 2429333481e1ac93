"""The programs of examples/, run as a user would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_program(name: str, folder: Path, *, timeout: float, **numbers: int) -> str:
    """What examples/<name> prints, run in a process of its own in an empty folder. Fails where it fails.

    `numbers`: what its keyword arguments of these names are in place of the program's own.
    """
    text = (ROOT / "examples" / name).read_text()
    for argument, number in numbers.items():
        text, found = re.subn(rf"\b{argument}=\d+", f"{argument}={number}", text)
        assert found == 1, argument
    (folder / name).write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "HF_"))}
    done = subprocess.run(
        [sys.executable, name],
        cwd=folder, env=kept | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def rewards(output: str) -> list[float]:
    """The figures of lines `step 3: reward 11.34...`."""
    return [float(value) for value in re.findall(r"^step \d+: reward (-?[\d.]+)", output, flags=re.MULTILINE)]
