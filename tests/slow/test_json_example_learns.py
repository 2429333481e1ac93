"""examples/json_extraction with all of its steps: the figures of its README (a few minutes)."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from commands import metrics
from json_example import REWARD, run_readme


@pytest.mark.long
def test_the_example_learns(tmp_path: Path) -> None:
    run_readme(tmp_path / "example", extra={})
    rows = metrics(tmp_path / "example" / "runs" / "json_gtpo")
    rewards = [row[f"rewards/{REWARD}_mean"] for row in rows]
    assert fmean(rewards[:5]) < 7.8  # half of the demonstrations were sloppy
    assert fmean(rewards[-10:]) > 9.2
