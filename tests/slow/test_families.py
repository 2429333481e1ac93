"""Runs of every family as a user makes them: trained, killed and resumed, exported, evaluated, asked. Their table in
docs/engines.md is written here: `GTPO_WRITE_DOCS=1 python -m pytest -m slow tests/slow/test_families.py`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import forks
import pytest
from commands import ROOT, comparable, contents, environment, metrics
from families import FAMILIES, family_model

PAGE = ROOT / "docs" / "engines.md"
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"
ONE_OF_A_KIND = ("Llama 3", "Gemma 3, text", "Qwen3-Next")  # of caches: growing, sliding, recurrent
HEAD = "| family | name in transformers | adapters of `all-linear` | largest gap, nats |\n|---|---|---|---:|\n"
SETTINGS = [
    "run_name=one", "rollout.prompts_per_step=2", "rollout.group_size=4", "rollout.max_completion_tokens=12",
    "objective.probe.num_prompts=2", "training.max_steps=3", "training.save_every=1", "tracking.wandb.mode=off",
    "data.limit=8", "data.system_prompt=null", "model.lora={rank: 4, alpha: 8, target_modules: all-linear}",
    "optimizer.learning_rate=0.01", "rewards.plugins=[{name: 'letters:reward'}]", "model.name=../model",
]  # fmt: skip
# Pays for different letters, so that random models have something to learn. Ends the process in step 2 of 8 completions
# each, after the trial, where there is a file `kill`.
REWARD = """
import os, signal
calls = 0
def reward(problem, completion):
    global calls
    calls += 1
    if calls == 13 and os.path.exists("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    return len(set(completion.text)) / 12
"""


# Commands one after the other in one process, which imports and loads once.
COMMANDS = """
import json, sys
from gtpo_cli.cli.app import app
for command in json.loads(sys.argv[1]):
    app(command, standalone_mode=False)
"""


def gtpo(folder: Path, *commands: list[str], code: int = 0) -> str:
    program = folder / "commands.py"
    program.write_text(COMMANDS)
    done = forks.run([str(program), json.dumps(commands)], cwd=folder, env=environment())
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def outcome(family: str, folder: Path) -> tuple[float, list[str]]:
    """The largest gap of an uninterrupted run between sampler and policy, and its adapted layers."""
    model, tokenizer = family_model(family)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    train = ["train", "--quiet", "--recipe", "tiny_arithmetic", *(part for s in SETTINGS for part in ("--set", s))]
    for name in ("whole", "killed"):
        (folder / name).mkdir()
        (folder / name / "letters.py").write_text(REWARD)
    export = ["export", "--format", "merged"]  # which compares it with the run's policy
    measure = ["eval", "--limit", "2", "--pass-k", "2", "--base"]
    said = gtpo(folder / "whole", train, export, measure, ["generate", "runs/one", "1+1=", "--max-tokens", "4"])
    assert "4 tokens" in said
    (folder / "killed" / "kill").touch()
    gtpo(folder / "killed", train, code=-signal.SIGKILL)
    (folder / "killed" / "kill").unlink()
    whole, killed = (folder / name / "runs/one" for name in ("whole", "killed"))
    assert [row["step"] for row in metrics(killed)] == [1]
    gtpo(folder / "killed", ["train", "--quiet", "--resume"])
    assert comparable(killed) == comparable(whole)
    assert contents(killed) == contents(whole)
    rows = metrics(whole)
    assert any(row["optim/grad_norm"] > 0 for row in rows)
    assert (whole / "export/merged/model.safetensors").is_file()
    assert {path.name.partition("-n")[0] for path in (whole / "evaluation/arithmetic").iterdir()} >= {"step-000003"}
    config = json.loads((whole / "checkpoints/step-000003/model/adapter_config.json").read_text())
    return max(row["sampler/gap_max"] for row in rows), sorted(config["target_modules"])


def row_of(family: str, gap: float, layers: list[str]) -> str:
    return f"| {family} | `{FAMILIES[family][0]}` | {', '.join(layers)} | {gap:.0e} |\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [name if name in ONE_OF_A_KIND else pytest.param(name, marks=pytest.mark.long) for name in FAMILIES]
)
def test_a_family_does_what_its_row_in_the_documentation_says(family: str, tmp_path: Path) -> None:
    gap, layers = outcome(family, tmp_path)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = {line.split(" | ")[0].removeprefix("| "): f"{line}\n" for line in table.strip().splitlines()[2:]}
    if os.environ.get("GTPO_WRITE_DOCS"):
        rows[family] = row_of(family, gap, layers)
        lines = "".join(rows[name] for name in FAMILIES if name in rows)
        PAGE.write_text(f"{before}{BEGIN}\n\n{HEAD}{lines}\n{END}{after}")
    said: Any = rows[family].split(" | ")
    assert row_of(family, float(said[3].removesuffix(" |\n")), layers) == rows[family]
    assert gap <= 10 * float(said[3].removesuffix(" |\n"))  # rounding differs between machines
