"""Runs the command `gtpo` as a user does: in a process of its own, in an empty folder."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import forks
import pytest
import small_runs
from commands import GTPO, SHARED, Run, environment
from terminal import OnTerminal, Terminal

_prepared: dict[str, Path] = {}


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and models beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("no folder shared/ beside the checkout: real data and models are not here")
    return SHARED


@pytest.fixture
def gtpo(tmp_path: Path) -> Run:
    """gtpo("train", "--quiet") -> the finished process, with text output. Fails the test on an unexpected exit code.
    `env` is set in the process itself: it is for what no library reads when it is imported."""

    def run(
        *arguments: str, code: int = 0, timeout: float = 300, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = forks.run([*GTPO, *arguments], cwd=tmp_path, timeout=timeout, env=environment(), more=dict(env or {}))
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def on_terminal(tmp_path: Path) -> Iterator[OnTerminal]:
    """on_terminal("train", columns=120): the command, started on a terminal of its own; it ends with the test."""
    opened: list[Terminal] = []

    def start(*arguments: str, **settings: Any) -> Terminal:
        opened.append(Terminal(tmp_path, [*arguments], **settings))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.kill()


@pytest.fixture
def prepared(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """prepared(["train", ...], ["eval", ...]): what these commands leave in an empty folder, in the test's. The same
    ones are run once in a session, and copied from then on."""

    def prepare(*commands: list[str]) -> None:
        key = json.dumps(commands)
        if key not in _prepared:
            _prepared[key] = tmp_path_factory.mktemp("prepared")
            for command in commands:
                small_runs.gtpo(_prepared[key], command)
        shutil.copytree(_prepared[key], tmp_path, dirs_exist_ok=True)

    return prepare
