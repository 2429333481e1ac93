"""The programs that a documentation page shows, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_block(page: str, *, after: str) -> str:
    """The first ```python block of docs/<page> behind the heading `after`."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text.count(f"\n{after}\n") == 1, f"{page} has no heading {after!r}, or several"
    found = re.search(r"^```python\n(.*?)^```$", text.partition(f"\n{after}\n")[2], flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def run_program(program: str, folder: Path, *, timeout: float) -> str:
    """What it prints, run in a process of its own in an empty folder. Fails where it fails."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "HF_"))}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder, env=kept | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def rewards(output: str) -> list[float]:
    """The figures of lines `step 3: reward 11.34...`."""
    return [float(value) for value in re.findall(r"^step \d+: reward (-?[\d.]+)", output, flags=re.MULTILINE)]
