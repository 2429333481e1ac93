"""Scripts of scripts/measure that tabulate and draw: what they make of a run's metrics and of a page's table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import draw_held_out
import pytest
from commands import ROOT
from draw_curves import main as draw_curves
from tabulate_runs import main as tabulate_runs

from gtpo_cli.recipe import dump_recipe, load_recipe
from gtpo_cli.runs.folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Of 25 steps, at each of which 4 % more are right."""
    run = RunFolder(tmp_path / "demo")
    run.path.mkdir()
    run.recipe_file.write_text(dump_recipe(load_recipe("tiny_arithmetic")))
    always = {"train/strict_format_rate": 0.5, "completions/truncated_share": 0.25, "entropy/mean": 0.1}
    always |= {"time/step": 6.0, "memory/peak_bytes": 2e6}
    rows = [{"step": step, "train/accuracy_rate": step / 25} | always for step in range(1, 26)]
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


@pytest.mark.parametrize(
    ("window", "accuracy"),
    [([], "0.060 -> 0.980"), (["--window", "10"], "0.220 -> 0.820")],  # steps 1, 2 and 24, 25; 1 to 10 and 16 to 25
)
def test_rows(
    run: RunFolder,
    window: list[str],
    accuracy: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["tabulate_runs.py", str(run.path), *window])
    tabulate_runs()
    row = capsys.readouterr().out.splitlines()[-1]
    expected = f"| demo | gtpo | 3407 | 25 | {accuracy} | 0.500 -> 0.500 | 0.250 | 0.100 -> 0.100 | 2.5 | 2 MB |"
    assert row == expected


def test_a_picture_and_its_means(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = run.path.parent / "curves.png"
    monkeypatch.setattr(sys, "argv", ["draw_curves.py", str(picture), f"{run.path}=GTPO, seed 1", "--window", "10"])
    draw_curves()
    assert capsys.readouterr().out == "| GTPO, seed 1 | 22 | 62 |\n"  # steps 1 to 10 and 11 to 20; 21 to 25 fill none
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_held_out_answers_is_of_the_table_of_results() -> None:
    table = draw_held_out.read_table((ROOT / "docs/results.md").read_text())
    assert list(table) == [f"{method}, seed {seed}" for seed in (3407, 1, 2) for method in draw_held_out.COLOURS]
    assert table["SFT, seed 3407"]["accuracy"] == (40.5, 34.3, 47.5)
    assert table["GTPO, seed 3407"] == {"accuracy": (45.8, 39.2, 52.8), "greedy accuracy": (50.8, 45.0, 56.6)}
