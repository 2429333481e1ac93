"""--json as typed: one object on standard output, with the values that the command says in words; and completion."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from commands import Prepared, Run, metrics

TRAIN = [
    "train", "-q", "--recipe", "tiny_arithmetic", "--set", "run_name=one", "--set", "training.max_steps=4",
    "--set", "objective.initial_entropy=0.16", "--set", "data.limit=64",
]  # fmt: skip


def said(gtpo: Run, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The object of a command: all of its standard output, strict JSON, and no word of what it says without --json."""
    output = gtpo(*arguments, "--json", code=code).stdout
    assert output.endswith("}\n")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    document = json.loads(output, parse_constant=refuse)
    assert isinstance(document, dict)
    return document


def test_doctor(gtpo: Run) -> None:
    sound = said(gtpo, "doctor")
    assert (sound["recipe"], sound["can_start"]) == (None, True)
    words = {finding["subject"]: finding for finding in sound["findings"]}
    assert words["hub"] == {
        "subject": "hub", "state": "note", "words": "HF_HUB_OFFLINE is set: only what is in the cache",
        "remedy": "without it: model.name and data.path as local folders, or fill the cache on a machine with network "
        "(hf download NAME) and bring it here, or unset HF_HUB_OFFLINE",
    }  # fmt: skip
    absent = said(gtpo, "doctor", "--recipe", "tiny_arithmetic", "--set", "model.name=nobody/nothing", code=1)
    assert (absent["recipe"], absent["can_start"]) == ("tiny_arithmetic", False)
    assert [finding["subject"] for finding in absent["findings"] if finding["state"] == "problem"] == ["model"]


def test_plan_says_what_the_table_says(gtpo: Run) -> None:
    plan, table = said(gtpo, "plan", "--gpu", "8GiB"), gtpo("plan", "--gpu", "8GiB").stdout
    assert (plan["prompts"], plan["steps"], plan["completions"]) == (4800, 600, 38400)
    assert (plan["fits"], plan["gpu_bytes"]) == (True, 8 * 2**30)
    memory = plan["memory"]["training"]
    assert memory["completions_in_a_forward"] == 64
    halves = ("sampling", "forward")
    for half in halves:
        assert sum(part[half] for part in memory["parts"]) == pytest.approx(memory[half])
    shown = re.search(r"together +([\d.]+) +([\d.]+)", table)
    assert shown is not None
    assert shown.groups() == tuple(f"{memory[half] / 2**30:.2f}" for half in halves)
    for command, of in (("eval", "eval"), ("probe-entropy", "probe_entropy")):
        measuring = plan["memory"][of]
        peak = max(measuring[half] for half in halves) / 2**30
        assert re.search(
            rf"gtpo {command} +{peak:.2f} GiB: {measuring['completions_in_a_forward']} completions in a forward", table
        )
    assert f"gtpo export         {plan['memory']['export']['answers'] / 2**30:.2f} GiB" in table
    small = said(gtpo, "plan", "--recipe", "llama8b_gsm8k", "--gpu", "12", code=1)
    assert (small["fits"], small["steps"], small["hours"]) == (False, 7473, [])
    assert small["memory"]["training"]["sequences_at_once"] == 0
    assert "use earlier counts" in small["notes"][0]
    assert small["saving"] is None
    unknown = said(gtpo, "plan", "--recipe", "llama8b_gsm8k", "--gpu", "12", "--set", "data.limit=9", code=1)
    assert (unknown["steps"], unknown["hours"]) == (None, [])
    assert "steps and prompts are not known here" in unknown["notes"][0]


def test_inspect_gives_the_stored_step_and_what_is_no_number_as_null(
    gtpo: Run, prepared: Prepared, tmp_path: Path
) -> None:
    prepared(TRAIN)
    file = tmp_path / "runs" / "one" / "samples" / "step-000001.jsonl"
    stored = [json.loads(line) for line in file.read_text().splitlines()]
    everything = said(gtpo, "inspect", "--problem", "all")
    assert (everything["run"], everything["step"], everything["completions"]) == ("runs/one", 1, stored)
    assert metrics(tmp_path / "runs" / "one")[0]["train/reward_mean"] == pytest.approx(
        sum(row["reward"] for row in everything["completions"]) / len(stored), abs=1e-4
    )
    stored[1]["mean_entropy"], stored[1]["logprobs"][0] = math.nan, -math.inf
    file.write_text("".join(json.dumps(row) + "\n" for row in stored))
    (second,) = said(gtpo, "inspect", "--problem", "1", "--completion", "2")["completions"]
    assert (second["completion"], second["mean_entropy"], second["logprobs"][0]) == (1, None, None)
    assert second["logprobs"][1:] == stored[1]["logprobs"][1:]
    seconds = [row for row in stored if row["completion"] == 1]
    shown = said(gtpo, "inspect", "--problem", "all", "--completion", "2")["completions"]
    assert [row["problem"] for row in shown] == [row["problem"] for row in seconds]
    assert len(shown) == 8
    tables = gtpo("inspect", "--problem", "all", "--completion", "2").stdout
    assert [line for line in tables.splitlines() if line.startswith("problem ")] == [
        f"problem {number} of 8" for number in range(1, 9)
    ]
    assert "choose one of" in gtpo("inspect", "--json", "--html", code=2).stderr
