"""examples/json_extraction from its data to a report, by the commands of its README."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import metrics
from json_example import EXAMPLE, REWARD, run_readme


def test_from_data_to_report(tmp_path: Path) -> None:
    few = {
        "train": ["--set", "training.max_steps=4", "--set", "objective.probe.num_prompts=8"],
        "eval": ["--limit", "8"],
    }
    said = run_readme(tmp_path / "example", extra=few)
    run = tmp_path / "example" / "runs" / "json_gtpo"
    for row in metrics(run):
        assert f"rewards/{REWARD}_mean" in row
    report = (run / "report" / "report.html").read_text()
    table = (run / "report" / "table.csv").read_text()
    assert f"{REWARD} (points)" in report
    assert f",{REWARD}," in table
    assert len([line for line in said.splitlines() if REWARD in line]) >= 3  # eval, compare, generate
    sample = json.loads((run / "samples" / "step-000001.jsonl").read_text().splitlines()[0])
    assert json.loads(sample["gold"]).keys() == {"name", "item", "count"}
    assert set(sample["plugins"]) == {REWARD}
    assert "dropped" not in said


def test_the_reward_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    from json_rewards import fields  # type: ignore[import-not-found]

    from gtpo_cli.types import Completion, Problem

    problem = Problem("p", "q", '{"name": "Mara", "item": "chairs", "count": 3}')
    expected = {
        '<json>{"name": "Mara", "item": "chairs", "count": 3}</json>': 10.0,
        '<json>{"count": 3, "item": "chairs", "name": "Mara"}</json>': 10.0,
        '<json>{"name": "Mara", "item": "chairs"}</json>': 7.0,
        '<json>{"name": "Mara", "item": "mugs", "count": "3"}</json>': 4.0,
        "<json>{}</json>": 1.0,
        '<json>{"name": "Mara", "item": "chairs", "count": 3</json>': 0.0,
        '{"name": "Mara", "item": "chairs", "count": 3}': 0.0,
        "<json>[1]</json>": 0.0,
        "": 0.0,
    }
    assert {text: fields(problem, Completion((), (), "stop", text)) for text in expected} == expected
