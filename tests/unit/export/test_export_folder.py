"""Where an export goes: what is refused, what is replaced, and that nothing half-written is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exported_runs import export, moved_run

from gtpo_cli.errors import ExportError
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tools.export.check import LogprobGap
from gtpo_cli.tools.export.folder import Exported, conditions_of, write_record, written_aside


@pytest.fixture
def full_run(tmp_path: Path) -> RunFolder:
    return moved_run(tmp_path / "full", builtin())


def builtin() -> Recipe:
    return build_recipe(
        {"model": {"name": "builtin:tiny", "max_seq_length": 128}, "data": {"benchmark": "arithmetic",
         "max_prompt_tokens": 64}}, where="test",
    )  # fmt: skip


@pytest.mark.slow
def test_a_foreign_file_is_never_lost(full_run: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert export(full_run, out=out).path == out  # an empty folder will do
    record = json.loads((out / "export.json").read_text())
    assert record["format"] == "merged"
    assert sorted(record["files"]) == sorted(p.name for p in out.iterdir() if p.name != "export.json")
    export(full_run, out=out, dtype="float32")  # an earlier export is replaced
    assert json.loads((out / "export.json").read_text())["dtype"] == "float32"
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(ExportError, match=r"not from an earlier export \(thesis.txt\).*--out"):
        export(full_run, out=out)
    assert (out / "thesis.txt").read_text() == "years of work"
    assert {path.name for path in tmp_path.iterdir()} == {"full", "out"}


def fail_in(out: Path, error: Exception) -> None:
    with written_aside(out) as aside:
        (aside / "weights").write_text("second")
        raise error


def test_an_export_that_fails_leaves_the_earlier_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with written_aside(out) as aside:
        (aside / "weights").write_text("first")
        write_record(
            aside,
            Exported(
                "r", 1, "merged", "float32", "b", 1, LogprobGap(1, 0.0, 0.0, 1), None, (), conditions_of(builtin())
            ),
        )
    for error, kind, words in (
        (RuntimeError("stop"), RuntimeError, "stop"),
        (OSError(28, "no space"), ExportError, r"out: cannot be written \(disk full: no space.*--out"),
    ):
        with pytest.raises(kind, match=words):
            fail_in(out, error)
    assert (out / "weights").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
