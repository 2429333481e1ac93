"""gtpo runs: a line for each run, newest first; damaged ones are named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gtpo_cli.cli.app import app
from gtpo_cli.recipe import load_recipe
from gtpo_cli.runs.folder import RunFolder


def make(folder: Path, name: str, *, method: str, age: float, accuracies: list[float]) -> RunFolder:
    run = RunFolder(folder / name)
    run.create(load_recipe("tiny_arithmetic", [f"objective.name={method}"]))
    rows = [{"step": step, "train/accuracy_rate": value} for step, value in enumerate(accuracies, start=1)]
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.write_environment({"total_steps": 9})
    os.utime(run.metrics_file, (run.metrics_file.stat().st_mtime - age,) * 2)
    return run


def listed(*arguments: str) -> list[list[str]]:
    result = CliRunner().invoke(app, ["runs", *arguments])
    assert result.exit_code == 0, result.output
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in result.output.splitlines()]


def test_runs_are_listed_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "runs", "old", method="grpo", age=3900, accuracies=[0.25, 0.75])
    make(tmp_path / "runs", "new", method="gtpo", age=200, accuracies=[])
    lines = listed()
    assert lines[0] == ["run", "method", "steps", "accuracy", "age"]
    assert [line[0] for line in lines[2:4]] == ["new", "old"]
    assert lines[2][1:3] == ["GTPO", "0 of 9"]
    assert lines[3][1:] == ["GRPO", "2 of 9", "50.0 % in training", "1 h 05 min"]
    assert listed(str(tmp_path / "runs"))[2:4] == lines[2:4]


@pytest.mark.parametrize("name", ["recipe.yaml", "metrics.jsonl"])
def test_a_damaged_run_is_named_and_the_others_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make(tmp_path / "runs", "broken", method="gtpo", age=60, accuracies=[0.5])
    (run.path / name).write_text("[1, 2\n[3\n")
    make(tmp_path / "runs", "whole", method="gtpo", age=0, accuracies=[0.5])
    lines = listed()
    assert [line[0] for line in lines[2:4]] == ["whole", "broken"]
    assert lines[3][1] == "damaged"
    assert f"runs/broken/{name}" in lines[4][0]


def test_a_link_in_a_run_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = make(tmp_path / "runs", "theirs", method="gtpo", age=0, accuracies=[0.5])
    run.evaluation.symlink_to(tmp_path)
    lines = listed()
    assert lines[2][:2] == ["theirs", "damaged"]
    assert "is a link" in lines[3][0]


def test_a_folder_without_runs(tmp_path: Path) -> None:
    assert listed(str(tmp_path))[0] == [f"{tmp_path}: there is no run here"]
