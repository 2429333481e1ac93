"""The two commands that docs/trl.md gives for two machines, executed here in two folders."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import forks
from commands import ROOT, comparable, contents, environment

SETTINGS = ("training.save_every=2", "data.limit=40", "objective.probe.num_prompts=8", "tracking.wandb.mode=off")


def start_all(commands: list[str], folders: list[Path]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for command, folder in zip(commands, folders, strict=True):
        words = command.replace("localhost:29500", f"localhost:{port}").split()
        assert words[0] == "torchrun"
        line = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
        env = environment() | forks.WITH_TRL
        running.append(subprocess.Popen(line, cwd=folder, env=env, stderr=subprocess.PIPE, text=True))
    try:
        for process in running:
            _, said = process.communicate(timeout=600)
            assert process.returncode == 0, said
    finally:
        for process in running:
            process.kill()


def test_two_machines_train_together_and_resume(tmp_path: Path) -> None:
    page = (ROOT / "docs/trl.md").read_text().replace(" \\\n ", "")
    commands = re.findall(r"^torchrun --nnodes 2 .*", page, re.M)
    assert len(commands) == 2
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    start_all([" --set ".join((command, *SETTINGS)) for command in commands], folders)
    first, second = (folder / "runs/two" for folder in folders)
    assert {path.name for path in second.rglob("*.*")} == {"rng_state_1.pth"}
    expected = comparable(first), contents(first)
    assert [row["step"] for row in expected[0]] == [1, 2, 3, 4]

    shutil.rmtree(first / "checkpoints/step-000004")
    shutil.copytree(first, second, dirs_exist_ok=True)
    start_all([re.sub("train .*", "train --resume runs/two", command) for command in commands], folders)
    assert (comparable(first), contents(first)) == expected
