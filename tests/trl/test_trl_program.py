"""examples/trl_trainer.py learns. Needs an environment with TRL."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from programs import rewards, run_program

pytest.importorskip("trl", reason="TRL is not installed")


def test_the_trl_example_begins(tmp_path: Path) -> None:
    seen = rewards(run_program("trl_trainer.py", tmp_path, timeout=900, max_steps=10))
    assert len(seen) == 2  # a line for each five steps
    assert all(9.0 < reward < 14.5 for reward in seen)


@pytest.mark.long
def test_the_trl_example_learns(tmp_path: Path) -> None:
    seen = rewards(run_program("trl_trainer.py", tmp_path, timeout=900))
    assert len(seen) == 12  # a line for each five steps
    assert 9.0 < seen[0] < 14.5
    assert fmean(seen[-3:]) > seen[0] + 2.0
