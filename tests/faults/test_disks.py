"""Disks that are full or cannot be written, damaged checkpoints, two processes, and a clock that jumps."""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forks
import pytest
from commands import GTPO, comparable, environment
from small_runs import Whole, assert_equal, finish, gtpo, resume, train


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """disk("size=3m") is a file system of its own in memory; called again it changes the options."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = False

    def mount(options: str) -> Path:
        nonlocal mounted
        how = ["-o", f"remount,{options}"] if mounted else ["-t", "tmpfs", "-o", options]
        done = subprocess.run(["mount", *how, "tmpfs", str(folder)], capture_output=True, text=True)
        if done.returncode and not mounted:
            pytest.skip(f"a file system of its own cannot be mounted here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        mounted = True
        return folder

    yield mount
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_is_full_during_a_save(small_disk: Callable[[str], Path], whole: Whole) -> None:
    folder = small_disk("size=4m")  # one checkpoint of 2 MB, its tokenizer and samples fit; a second one does not
    output = gtpo(folder, train("one"), code=2)
    assert "step-000004: the checkpoint cannot be written" in output
    assert "disk full: " in output
    assert "earlier ones are untouched. Make room, then continue with gtpo train --resume runs/one" in output
    assert [path.name for path in (folder / "runs" / "one" / "checkpoints").iterdir()] == ["step-000002"]
    small_disk("size=64m")
    finish(folder, "one")
    assert_equal(folder / "runs" / "one", whole)


def test_a_disk_that_is_full_when_samples_are_written(small_disk: Callable[[str], Path], whole: Whole) -> None:
    folder = small_disk("size=32k")
    output = gtpo(folder, train("one"), code=2)
    said = "(disk full: No space left on device); make room, then continue with gtpo train --resume runs/one"
    assert said in output
    small_disk("size=64m")
    finish(folder, "one")
    assert_equal(folder / "runs" / "one", whole)


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (["eval", "runs/whole", "--limit", "8", "--pass-k", "4"], "runs/whole/evaluation/"),
        (["export", "runs/whole", "--out", "merged"], "merged"),
        (["sweep", "trial.yaml"], "runs/sweeps/trial"),
    ],
)
def test_other_commands_on_a_full_disk(
    small_disk: Callable[[str], Path], whole: Whole, command: list[str], where: str
) -> None:
    folder = small_disk("size=64m")
    shutil.copytree(whole.run, folder / "runs" / "whole")
    keys = "training.max_steps: 1, objective.initial_entropy: 0.16"
    text = f"recipe: tiny_arithmetic\nabout: a trial\nset: {{{keys}}}\nvariants: {{gtpo: {{}}}}\nseeds: [1]\n"
    (folder / "trial.yaml").write_text(text)
    filling = folder / "filling"
    with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    output = gtpo(folder, command, code=2)
    error = output.splitlines()[-1]
    assert error.startswith(f"error: {where}")
    assert "disk full: No space left on device" in error
    filling.unlink()
    gtpo(folder, command)


def test_a_log_that_cannot_grow(tmp_path: Path, whole: Whole) -> None:
    """The system lets no file grow beyond 3,000 bytes: metrics.jsonl reaches that after some steps."""

    rare = ["training.save_every=100", "tracking.log_completions_every=100"]
    # step 1 always writes its samples, which are larger: they are there before the limit is
    process = forks.Command([*GTPO, *train("one", *rare)], cwd=tmp_path, env=environment())
    samples = tmp_path / "runs" / "one" / "samples" / "step-000001.jsonl"
    while not samples.exists():
        assert process.runs()
        time.sleep(0.001)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
    done = process.wait()
    assert done.returncode == 2
    assert "metrics.jsonl: metrics cannot be written (File too large); make room" in done.stderr
    finish(tmp_path, "one")
    assert comparable(tmp_path / "runs" / "one") == comparable(whole.run)


@pytest.mark.parametrize("name", ["training.pt", "model/model.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path: Path, whole: Whole, name: str) -> None:
    run = tmp_path / "runs" / "whole"
    shutil.copytree(whole.run, run)
    file = run / "checkpoints" / "step-000010" / name
    file.write_bytes(file.read_bytes()[:-100])
    output = gtpo(tmp_path, resume("whole"))
    assert f"runs/whole/checkpoints/step-000010/{name}: damaged checkpoint: the file has" in output
    assert "set aside as runs/whole/checkpoints/damaged-step-000010-1; continuing from step 8" in output
    assert_equal(run, whole)


def test_a_folder_that_cannot_be_written(small_disk: Callable[[str], Path]) -> None:
    folder = small_disk("ro")
    output = gtpo(folder, train("one"), code=2)
    assert "runs/one: cannot write the run folder (Read-only file system); see output_dir" in output
