"""The table of several steps a generation, of made-up runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import tabulate_ahead

from gtpo_cli.recipe import load_recipe
from gtpo_cli.runs.folder import RunFolder


def test_rows_series_and_picture(tmp_path: Path) -> None:
    """Step s of a seed has accuracy s / 100 + seed / 10; 64 completions a step."""
    runs = tmp_path / "runs"
    runs.mkdir()
    for K in (1, 2):
        for seed in (1, 2):
            run = RunFolder(runs / f"gtpo_k{K}-{seed}")
            run.create(load_recipe("tiny_arithmetic", [f"seed={seed}", f"rollout.steps_per_generation={K}"]))
            rows = [{"step": s, "train/accuracy_rate": s / 100 + seed / 10} for s in range(1, 101)]
            more = {"ratio/max": 1.5 + seed, "ratio/clipped_share": 0.01 * seed} if K > 1 else {}
            run.metrics_file.write_text("".join(json.dumps(row | more) + "\n" for row in rows))
    series, completions = tabulate_ahead.read(runs)
    assert completions == 64
    lines = tabulate_ahead.table(series, completions).splitlines()
    assert "steps 31 to 50 (to 3,200 completions)" in lines[0]
    means = "0.555 (-0.080 to 1.190) | 1.055 (0.420 to 1.690) | 1.130 (0.495 to 1.765)"
    assert lines[2:] == [f"| GTPO | 1 | {means} |  |  |", f"| GTPO | 2 | {means} | 3.5 | 1.5 % |"]
    tabulate_ahead.store(series, completions, tmp_path / "series.csv")
    stored = list(csv.DictReader((tmp_path / "series.csv").open()))
    assert len(stored) == 4 * 10
    assert stored[0]["completions"] == "640"
    assert float(stored[0]["accuracy"]) == pytest.approx(0.155)
    pytest.importorskip("matplotlib")
    tabulate_ahead.draw(series, completions, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
