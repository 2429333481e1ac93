"""What the TAB key does, in a real bash; and words that are hard to cut."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from commands import GTPO, environment

from gtpo_cli.cli import completion
from gtpo_cli.cli.train import CHANGES_NO_STEP, ENDS

PROMPT = "ready> "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for run in ("runs/gtpo-1", "runs/gtpo-2", "runs/sft", "elsewhere/far", "runs/none"):
        (folder / run).mkdir(parents=True)
        if run != "runs/none":
            (folder / run / "recipe.yaml").touch()
    (folder / "mine.yaml").write_text("extends: tiny_arithmetic\noutput_dir: elsewhere\n")
    (folder / "sums.jsonl").touch()
    return folder


@pytest.fixture(scope="module")
def bash(folder: Path) -> Iterator[Any]:
    """An interactive bash that has read what `gtpo --show-completion` prints."""
    settings = environment() | {"PS1": PROMPT, "TERM": "dumb", "INPUTRC": os.devnull}
    script = folder / "completion.sh"
    asked = settings | {"_GTPO_COMPLETE": "source_bash"}
    script.write_text(subprocess.run(GTPO, env=asked, capture_output=True, text=True, check=True).stdout)
    shell = pexpect.spawn(
        "bash", ["--norc", "--noprofile"], cwd=str(folder), env=settings, dimensions=(50, 200), encoding="utf-8",
        timeout=120,
    )  # fmt: skip
    shell.expect_exact(PROMPT)
    for line in ("bind 'set bell-style none'", "bind 'set enable-bracketed-paste off'", f"source {script.name}"):
        shell.sendline(line)
        shell.expect_exact(PROMPT)
    yield shell
    shell.close(force=True)


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("train --set training.max_st", "train --set training.max_steps="),
        ("train --set objective.name=gr", "train --set objective.name=grpo "),
        ("train --set=tracking.wandb.mode=of", "train --set=tracking.wandb.mode=off"),
        ("train --set seed=1 --set data.shuffle=f", "train --set seed=1 --set data.shuffle=false "),
        ("train --set data.path=su", "train --set data.path=sums.jsonl "),
        ("train --recipe mi", "train --recipe mine.yaml "),
        ("train --resume runs/s", "train --resume runs/sft "),
        ("eval runs/g", "eval runs/gtpo-"),
        ("compare runs/gtpo-1@base runs/s", "compare runs/gtpo-1@base runs/sft "),
        ("train --recipe mine.yaml --from else", "train --recipe mine.yaml --from elsewhere/far "),
    ],
)
def test_a_shell_completes(bash: Any, typed: str, becomes: str) -> None:
    try:
        bash.send(f"gtpo {typed}\t|")  # what is typed behind it shows whether a space was set
        bash.expect_exact(f"gtpo {becomes}|")
    finally:
        bash.sendcontrol("u")  # empties the line; Ctrl-C does nothing where the tests run in the background
        bash.sendline("")
        bash.expect_exact(PROMPT)


def test_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GTPO_COMPLETE_BEFORE", raising=False)
    keys = completion.overrides("")
    assert {f"{key}=" for key in (*ENDS, *CHANGES_NO_STEP, "run_name", "model.lora")} <= set(keys)
    assert not {"model=", "data.mixture.weight=", "rewards.plugins.name=", "training.guard="} & set(keys)
    assert completion.overrides("rollout.temperat") == ["rollout.temperature=", "rollout.temperature=VALUE"]
    assert completion.overrides("model.lor")[:2] == ["model.lora=", "model.lora.rank="]
    assert completion.overrides("training.max_steps=") == ["training.max_steps=null"]
    assert completion.overrides("objective.name=d") == ["objective.name=dr_grpo", "objective.name=dapo"]
    assert completion.overrides("no.such.key=") == []


@pytest.mark.parametrize(
    ("words", "place", "joined", "before"),
    [
        (["gtpo", "train", "--set", "a", "=", "b"], 5, ["gtpo", "train", "--set", "b"], "a="),
        (["gtpo", "train", "--set", "a", "="], 4, ["gtpo", "train", "--set", ""], "a="),
        (["gtpo", "train", "--set", "a", "=", ""], 5, ["gtpo", "train", "--set", "a=", ""], ""),
        (["gtpo", "train", "--set", "=", "a.b", "=", "c"], 6, ["gtpo", "train", "--set", "c"], "a.b="),
        (["gtpo", "eval", "x", ":", "y", "z", "w"], 5, ["gtpo", "eval", "x:y", "z"], ""),
        (["gtpo", "train", "--set", "a", "==", "b"], 5, ["gtpo", "train", "--set", "b"], "a=="),
        (["gtpo", ""], 1, ["gtpo", ""], ""),
        (["gtpo"], 0, ["gtpo"], ""),
    ],
)
def test_words_that_bash_cuts(
    words: list[str], place: int, joined: list[str], before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("COMP_WORDS", "\n".join(words)), ("COMP_CWORD", str(place)), ("GTPO_COMPLETE_BEFORE", "")):
        monkeypatch.setenv(name, value)
    completion.join_words_of_bash()
    assert os.environ["COMP_WORDS"].split("\n") == joined
    assert os.environ["COMP_CWORD"] == str(len(joined) - 1)
    assert os.environ["GTPO_COMPLETE_BEFORE"] == before
