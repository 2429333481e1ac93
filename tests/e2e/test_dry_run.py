"""`gtpo train --dry-run` beside the run of the same recipe: the same prompts, steps and completions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import metrics
from series import series

SMALL = [
    "data.limit=12", "rollout.prompts_per_step=5", "rollout.group_size=2", "rollout.max_completion_tokens=37",
    "objective.probe.num_prompts=2", "tracking.wandb.mode=off", "tracking.log_completions_every=1",
    "training.save_every=100",
]  # fmt: skip
# An epoch has three steps, of 5, 5 and 2 prompts. SFT leaves four problems out, whose references are too long.
CASES = {
    "below": (["training.max_steps=2"], {"prompts": 12, "steps": 2, "completions": 2 * 10, "references": 0}),
    "above": (["training.max_steps=4"], {"prompts": 12, "steps": 4, "completions": 2 * 17, "references": 0}),
    "epochs": (["training.epochs=2"], {"prompts": 12, "steps": 6, "completions": 2 * 24, "references": 0}),
    "sft": (
        ["training.epochs=2", "objective.name=sft"],
        {"prompts": 8, "steps": 4, "completions": 0, "references": 16},
    ),
    "sft-above": (
        ["training.max_steps=3", "objective.name=sft"],
        {"prompts": 8, "steps": 3, "completions": 0, "references": 13},
    ),
}


def of_case(name: str) -> list[str]:
    settings = [f"run_name={name}", "training.max_steps=null", *SMALL, *CASES[name][0]]
    return ["--recipe", "tiny_arithmetic", *(part for setting in settings for part in ("--set", setting))]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder in which every case ran, and what its dry run printed; beside them TRL's dry run, and two plans."""
    folder = tmp_path_factory.mktemp("typed")
    commands = {}
    for name in CASES:
        commands |= {name: ["train", *of_case(name), "--dry-run"], f"run {name}": ["train", *of_case(name), "--quiet"]}
    commands["trl"] = ["train", *of_case("epochs"), "--dry-run", "--engine", "trl"]
    commands |= {f"plan {name}": ["plan", *of_case(name)] for name in ("epochs", "sft")}
    done = dict(zip(commands, series(folder, [*commands.values()]), strict=True))
    assert {name: one.stderr for name, one in done.items() if one.code} == {}
    return folder / "runs", {name: one.stdout + one.stderr for name, one in done.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_counts_what_the_run_does(typed: tuple[Path, dict[str, str]], name: str) -> None:
    runs, printed = typed
    counted = {what: int(count) for what, count in re.findall(r"^# (\w+): (\d+)", printed[name], flags=re.MULTILINE)}
    expected = CASES[name][1]
    assert {"references": 0} | counted == expected
    assert ("training samples nothing" in printed[name]) == name.startswith("sft")
    run = runs / name
    assert json.loads((run / "environment.json").read_text())["problems"] == expected["prompts"]
    assert [row["step"] for row in metrics(run)] == list(range(1, expected["steps"] + 1))
    samples = (run / "samples").glob("*.jsonl")
    assert sum(len(file.read_text().splitlines()) for file in samples) == expected["completions"]


def test_a_dry_run_with_trl_leaves_out_the_smaller_steps_as_trl_does(typed: tuple[Path, dict[str, str]]) -> None:
    lines = typed[1]["trl"].splitlines()
    assert [line for line in lines if line.startswith(("# prompts", "# steps", "# completions"))] == [
        "# prompts: 12", "# steps: 4 (2 an epoch)", f"# completions: {4 * 10}",
    ]  # fmt: skip


def test_a_plan_counts_as_a_dry_run(typed: tuple[Path, dict[str, str]]) -> None:
    epochs, sft = (
        next(line for line in typed[1][f"plan {name}"].splitlines() if line.startswith("run "))
        for name in ("epochs", "sft")
    )
    assert epochs.split(maxsplit=1)[1].startswith("12 prompts, 6 steps, 48 completions, at most ")
    assert sft.split(maxsplit=1)[1].startswith("8 prompts, 4 steps, 16 references of at most ")
    assert sft.endswith("; training samples nothing")
