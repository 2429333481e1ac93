"""Thousands of steps: memory, open files and the run folder stay as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment

STEPS = 3000
WATCHED_FROM = 200
# At every step a line: step, resident bytes, open files.
SOAK = """
import os, sys
from gtpo_cli.tracking import Trackers

log = Trackers.log

def watched(self, step, metrics):
    log(self, step, metrics)
    with open("/proc/self/status") as status:
        resident = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))
    print("WATCH", step, resident, len(os.listdir("/proc/self/fd")))

Trackers.log = watched
sys.argv = ["gtpo", *sys.argv[1:]]
from gtpo_cli.cli.app import main
main()
"""
SETTINGS = [
    "run_name=soak", f"training.max_steps={STEPS}", "rollout.prompts_per_step=1", "rollout.group_size=4",
    "rollout.max_completion_tokens=4", "data.limit=64", "objective.probe.num_prompts=4", "training.save_every=100",
    "training.keep_last=2", "tracking.log_completions_every=100", "tracking.wandb.mode=offline",
    "optimizer.learning_rate=1e-5",
]  # fmt: skip


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.long
def test_thousands_of_steps_leave_no_trace_in_memory(tmp_path: Path) -> None:
    arguments = ["train", "--quiet", "--recipe", "tiny_arithmetic", *(p for o in SETTINGS for p in ("--set", o))]
    done = subprocess.run(
        [sys.executable, "-c", SOAK, *arguments], cwd=tmp_path, env=environment() | {"HOME": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("WATCH")]
    watched = {int(step): (int(resident), int(files)) for step, resident, files in rows}
    assert len(watched) == STEPS
    (early, early_files), (late, late_files) = watched[WATCHED_FROM], watched[STEPS]
    run = tmp_path / "runs" / "soak"
    checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
    print(
        f"{STEPS} steps: {early / 1e6:.0f} MB resident at step {WATCHED_FROM}, {late / 1e6:.0f} MB at the end; "
        f"{early_files} and {late_files} open files; run folder {folder_bytes(run) / 1e6:.1f} MB"
    )
    assert late <= 1.03 * early
    assert late_files <= early_files + 2
    assert len(checkpoints) <= 3  # the last two and the best
    assert len(list((run / "samples").iterdir())) == STEPS // 100 + 1
    assert folder_bytes(run / "checkpoints") < 12e6
    assert (run / "metrics.jsonl").stat().st_size < 1500 * STEPS
