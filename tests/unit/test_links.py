"""Nothing in a run folder is a link: what gtpo writes there stays there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gtpo_cli.errors import CheckpointError, GtpoError
from gtpo_cli.recipe import load_recipe
from gtpo_cli.runs.files import append_to, locked
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tracking import JsonlTracker


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.create(load_recipe("tiny_arithmetic"))
    return made


@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl", "environment.json", "recipe.yaml", ".lock", "start", "samples", "checkpoints", "evaluation",
        "report", "export", "trl", "tensorboard", "wandb",
        "wandb/artifacts", "wandb/run_id", "checkpoints/.step-000005.tmp", "checkpoints/step-000001",
        "checkpoints/step-000001/model/adapter_model.safetensors", "evaluation/arithmetic/base-n1-0/samples.jsonl",
        "samples/step-000001.jsonl", "anything/else",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["file", "folder", "nothing", "itself"])
def test_a_link_anywhere_is_refused_by_its_name(run: RunFolder, tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    link = run.path / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(link.name if kind == "itself" else tmp_path / kind)
    said = rf"^{re.escape(str(link))}: is a link, which a run folder must not contain; .*cp -rL.*output_dir$"
    for use in (run.recipe, run.recipe_to_run, lambda: run.held(None).__enter__()):
        with pytest.raises(CheckpointError, match=said):
            use()


def test_a_folder_deeper_than_any_recursion_is_looked_through(run: RunFolder) -> None:
    for depth in range(1, 1500):
        (run.path / "/".join(["d"] * depth)).mkdir()
    assert run.recipe() is not None
    for depth in range(1499, 0, -1):  # shutil.rmtree recurses
        (run.path / "/".join(["d"] * depth)).rmdir()


def linked(target: Path, link: Path) -> None:
    link.symlink_to(target)


def hard(target: Path, link: Path) -> None:
    os.link(target, link)


def appended(path: Path) -> None:
    with append_to(path):
        pass


def logged(path: Path) -> None:
    JsonlTracker(path, keep_bytes=0).close()


def lock(path: Path) -> None:
    with locked(path, held=GtpoError("held")):
        pass


@pytest.mark.parametrize("make", [linked, hard])
@pytest.mark.parametrize("write", [appended, logged, lock])
def test_no_descriptor_that_is_written_is_that_of_another_file(
    tmp_path: Path, make: Callable[[Path, Path], None], write: Callable[[Path], None]
) -> None:
    """Also where a link appears after the folder was looked through."""
    private = tmp_path / "private"
    private.write_text("what is dear to somebody")
    make(private, tmp_path / "metrics.jsonl")
    with pytest.raises((GtpoError, OSError), match=r"symbolic links|hard link"):
        write(tmp_path / "metrics.jsonl")
    assert private.read_text() == "what is dear to somebody"


# -- memory -----------------------------------------------------------------------------------------------------------
