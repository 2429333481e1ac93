"""How the project takes its figures.

- Time is CPU time of one process on one thread. Candidates take turns within a round, every other round in reverse, and
  a figure is the median over rounds of a ratio within the round: what else the machine does hits both alike.
- Peak memory is that of a fresh process, less that of another one that imports the same and holds the same inputs.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

Seconds = dict[str, list[float]]  # CPU seconds of each candidate, one for each round


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    note: str = ""


def interleaved(candidates: Mapping[str, Callable[[], object]], *, rounds: int, calls: int = 1) -> Seconds:
    """CPU seconds of one call of each candidate in each round, after one call of each that is not counted.

    calls: calls in a row that are timed together; for candidates too quick for the clock.
    """
    for candidate in candidates.values():
        candidate()
    seconds: Seconds = {name: [] for name in candidates}
    for turn in range(rounds):
        order = list(candidates) if turn % 2 == 0 else list(candidates)[::-1]
        for name in order:
            start = time.process_time()
            for _ in range(calls):
                candidates[name]()
            seconds[name].append((time.process_time() - start) / calls)
    return seconds


def median_ratio(seconds: Seconds, candidate: str, baseline: str) -> float:
    """Median over rounds of the candidate's time over the baseline's in the same round."""
    return statistics.median(a / b for a, b in zip(seconds[candidate], seconds[baseline], strict=True))


def peak_bytes_of(script: Path, job: str) -> int:
    """Peak memory of a fresh `script --job JOB`, which prints `own_peak_bytes()` as its last line."""
    done = subprocess.run(
        [sys.executable, str(script), "--job", job], capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode != 0:
        raise RuntimeError(f"{script.name} --job {job} ended with {done.returncode}:\n{done.stderr}")
    return int(done.stdout.split()[-1])


def own_peak_bytes() -> int:
    """Largest resident size of this process so far, bytes.

    Linux starts ru_maxrss of a child at the size of its parent, so a small job started from a large process reads
    too much; VmHWM belongs to the new program alone.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def machine() -> dict[str, str]:
    """What the figures depend on."""
    import torch

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = f"{models[0]}, {len(models)} cores" if models else cpu
    return {
        "cpu": cpu,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gtpo_cli": version("gtpo_cli"),
    }


def write(out: Path, name: str, title: str, figures: Sequence[Figure]) -> str:
    """Write NAME.json and NAME.md into `out`; returns the Markdown."""
    on = machine()
    lines = [f"## {title}", "", ", ".join(f"{key} {value}" for key, value in on.items()), ""]
    lines += ["| figure | measured | |", "|---|---|---|"]
    lines += [f"| {figure.name} | {figure.value:.3g} {figure.unit} | {figure.note} |" for figure in figures]
    markdown = "\n".join(lines) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    record = {"title": title, "machine": on, "figures": [asdict(figure) for figure in figures]}
    (out / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (out / f"{name}.md").write_text(markdown, encoding="utf-8")
    return markdown
