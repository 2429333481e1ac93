"""SIGKILL at any moment, then resume: the run ends as one that nothing happened to, bit for bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import forks
import pytest
from commands import GTPO, environment
from small_runs import Whole, assert_equal, finish, resume, train

KILLER = str(Path(__file__).parent / "killed_at_a_change.py")
AT_ONCE = 2  # runs side by side


@dataclass(frozen=True)
class Moment:
    """When a process is killed: before its n-th change of a file, or after so many seconds."""

    change: int = 0
    seconds: float = 0.0

    def kill(self, folder: Path, arguments: list[str]) -> bool:
        """Start gtpo and kill it then; False when it was done before."""
        command = [KILLER, str(self.change), *arguments] if self.change else [*GTPO, *arguments]
        done = forks.run(command, cwd=folder, env=environment(), timeout=self.seconds or 300)
        assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
        return done.returncode != 0


def chains(whole: Whole, kills: int) -> Iterator[list[Moment]]:
    """Moments in chains of three for one run: before a change, after a time, before a change."""
    chosen = random.Random(3407)
    for _ in range(2 * kills // 3):
        yield [
            Moment(change=chosen.randint(1, whole.changes)),
            Moment(seconds=chosen.uniform(0.3, 1.0) * whole.seconds),
            Moment(change=chosen.randint(1, whole.changes // 2)),
        ]


@pytest.mark.parametrize("kills", [12, pytest.param(30, marks=pytest.mark.long)])
def test_killed_at_many_moments_and_resumed(whole: Whole, tmp_path: Path, kills: int) -> None:
    def live_through(chain: tuple[int, list[Moment]]) -> int:
        number, moments = chain
        name, survived = f"run{number}", 0
        for moment in moments:
            there = (tmp_path / "runs" / name / "recipe.yaml").exists()
            survived += moment.kill(tmp_path, resume(name) if there else train(name))
        finish(tmp_path, name)
        assert_equal(tmp_path / "runs" / name, whole)
        return survived

    killed, every = 0, enumerate(chains(whole, kills))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for two in zip(every, every, strict=True):
            killed += sum(pool.map(live_through, two))
            if killed >= kills:  # a moment that came after the run had ended does not count
                break
    print(f"{killed} kills survived")
    assert killed >= kills


DURING: dict[str, Callable[[Path], bool]] = {
    "the first probe": lambda run: (run / "environment.json").exists(),
    "a checkpoint": lambda run: any((run / "checkpoints").glob(".step-*")),
    "an evaluation": lambda run: (run / "samples" / "step-000003.jsonl").exists(),
}


@pytest.mark.parametrize("what", DURING)
def test_killed_during(what: str, whole: Whole, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    process = forks.Command([*GTPO, *train("one")], cwd=tmp_path, env=environment())
    deadline = time.monotonic() + 120
    while not DURING[what](run):
        assert process.runs()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait().returncode == -signal.SIGKILL
    finish(tmp_path, "one")
    assert_equal(run, whole)


def test_killed_between_the_last_checkpoint_and_the_removal_of_an_old_one(tmp_path: Path, whole: Whole) -> None:
    """The run has made its last step, so only the number of checkpoints says that something is left to do."""
    run = tmp_path / "runs" / "whole"
    shutil.copytree(whole.run, run)
    state = json.loads((run / "checkpoints" / "step-000008" / "state.json").read_text())
    shutil.copytree(run / "checkpoints" / "step-000008", run / "checkpoints" / "step-000006")
    (run / "checkpoints" / "step-000006" / "state.json").write_text(json.dumps(state | {"step": 6}))
    finish(tmp_path, "whole")
    assert_equal(run, whole)
    assert "is finished: step 10 of 10" in finish(tmp_path, "whole")
