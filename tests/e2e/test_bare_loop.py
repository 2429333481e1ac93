"""examples/bare_loop.py: GTPO in bare torch learns."""

from __future__ import annotations

import ast
from pathlib import Path
from statistics import fmean

from programs import ROOT, rewards, run_program


def test_the_bare_loop_learns(tmp_path: Path) -> None:
    program = (ROOT / "examples" / "bare_loop.py").read_text(encoding="utf-8")
    program = program.replace(ast.get_docstring(ast.parse(program), clean=False) or "", "")
    assert len([line for line in program.splitlines() if line.strip()]) <= 55
    seen = rewards(run_program("bare_loop.py", tmp_path, timeout=500))
    assert len(seen) == 100
    assert 10.0 < fmean(seen[:5]) < 13.5  # the built-in model untrained, as every recipe that starts from it finds it
    assert fmean(seen[-10:]) > 17.0
