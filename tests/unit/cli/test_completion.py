"""What the TAB key does, in a real bash."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from commands import GTPO, environment

PROMPT = "ready> "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for run in ("runs/gtpo-1", "runs/gtpo-2", "runs/sft", "elsewhere/far", "runs/none"):
        (folder / run).mkdir(parents=True)
        if run != "runs/none":
            (folder / run / "recipe.yaml").touch()
    (folder / "mine.yaml").touch()
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
        ("tra", "train "),
        ("eval elsewhere/f", "eval elsewhere/far "),
        ("train --recipe mi", "train --recipe mine.yaml "),
        ("train --resume runs/s", "train --resume runs/sft "),
        ("eval runs/g", "eval runs/gtpo-"),
        ("compare runs/gtpo-1@base runs/s", "compare runs/gtpo-1@base runs/sft "),
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
