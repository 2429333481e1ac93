"""examples/bare_loop.py: GTPO in bare torch learns."""

from __future__ import annotations

import ast
from pathlib import Path
from statistics import fmean

import forks
from commands import ROOT, environment
from programs import rewards


def test_the_bare_loop_learns(tmp_path: Path) -> None:
    file = ROOT / "examples" / "bare_loop.py"
    program = file.read_text(encoding="utf-8")
    program = program.replace(ast.get_docstring(ast.parse(program), clean=False) or "", "")
    assert len([line for line in program.splitlines() if line.strip()]) <= 55
    half = tmp_path / "half.py"  # of its steps: it has learned by then
    half.write_text(program.replace("= 8, 8, 100, None", "= 8, 8, 50, None"), encoding="utf-8")
    done = forks.run([str(half)], cwd=tmp_path, env=environment(), timeout=500)
    assert done.returncode == 0, done.stderr
    seen = rewards(done.stdout)
    assert len(seen) == 50
    assert 10.0 < fmean(seen[:5]) < 13.5  # the built-in model untrained, as every recipe that starts from it finds it
    assert fmean(seen[-10:]) > 17.0
