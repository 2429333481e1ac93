"""The bare torch loop of docs/library.md, as it stands there."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from pages import python_block, rewards, run_program


def test_the_bare_loop_learns(tmp_path: Path) -> None:
    program = python_block("library.md", after="## A bare torch loop")
    assert len([line for line in program.splitlines() if line.strip()]) <= 55
    seen = rewards(run_program(program, tmp_path, timeout=500))
    assert len(seen) == 100
    assert 10.0 < fmean(seen[:5]) < 13.5  # the built-in model untrained, as every recipe that starts from it finds it
    assert fmean(seen[-10:]) > 17.0
