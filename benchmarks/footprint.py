"""Memory of the demo and how long commands take to start. Run: `python benchmarks/run.py footprint` (three minutes)."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile

from measure import Figure

TITLE = "Footprint"
_PEAK = """
import sys
from gtpo_cli.cli.app import main
try:
    main()
finally:
    status = open("/proc/self/status").read()
    print("peak", next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), file=sys.stderr)
"""


def run(*, rounds: int = 9, steps: int = 600) -> list[Figure]:
    """The demo's own recipe, whole; then CPU time of commands that need no torch."""
    figures = [demo_memory(steps)]
    for words in (["--help"], ["recipes", "check"]):
        taken = [cpu_seconds([sys.executable, "-m", "gtpo_cli", *words]) for _ in range(rounds)]
        name = f"gtpo {' '.join(words)}: CPU time of the process"
        figures.append(Figure(name, statistics.median(taken), "s", f"{rounds} starts"))
    return figures


def demo_memory(steps: int) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        command = ["train", "--recipe", "tiny_arithmetic", "--quiet", "--set", f"training.max_steps={steps}"]
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, *command], cwd=folder, capture_output=True, text=True, check=True,
            env=os.environ | {"WANDB_MODE": "disabled"},
        )  # fmt: skip
    peak = int(done.stderr.rpartition("peak ")[2].split()[0]) * 1024
    return Figure(f"peak resident memory of gtpo train --recipe tiny_arithmetic, {steps} steps", peak / 1e6, "MB")


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
