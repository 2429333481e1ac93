"""Where an export goes: what is refused, what is replaced, and that nothing half-written is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from exported_runs import export, moved_run, recipe_on
from policy_contract import save_model

from gtpo_cli.errors import ExportError
from gtpo_cli.export import gguf
from gtpo_cli.export.check import LogprobGap
from gtpo_cli.export.folder import Exported, write_record, written_aside
from gtpo_cli.export.weights import read_back
from gtpo_cli.models import load_tokenizer
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.run_folder import RunFolder


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
        write_record(aside, Exported("r", 1, "merged", "float32", "b", 1, LogprobGap(1, 0.0, 0.0, 1), None, ()))
    for error, kind, words in (
        (RuntimeError("stop"), RuntimeError, "stop"),
        (OSError(28, "no space"), ExportError, r"out: cannot be written \(disk full: no space.*--out"),
    ):
        with pytest.raises(kind, match=words):
            fail_in(out, error)
    assert (out / "weights").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_cannot_be_is_said_before_a_model_is_loaded(full_run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"trained all weights, so there is no adapter; use --format merged"):
        export(full_run, "adapter")
    with pytest.raises(ExportError, match="nothing to merge into a base"):
        export(full_run, base="some/base")
    with pytest.raises(ExportError, match="--revision is the hub revision of --base"):
        export(full_run, revision="main")
    with pytest.raises(ExportError, match="--converter is for --format gguf"):
        export(full_run, converter="x")
    adapter = moved_run(tmp_path / "adapter", recipe_on(save_model(tmp_path / "base")))
    with pytest.raises(ExportError, match="exported unchanged"):
        export(adapter, "adapter", dtype="float16")
    assert not full_run.export.exists()


class TestGguf:
    def test_the_converter_is_looked_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(
            ExportError, match=r"not on PATH and in no Python package: git clone.*--converter llama.cpp"
        ):
            gguf.find_converter(None)
        with pytest.raises(ExportError, match=r"--converter .*: there is no convert_hf_to_gguf.py"):
            gguf.find_converter(str(tmp_path))
        script = tmp_path / gguf.SCRIPT
        script.write_text("#!/bin/sh\n")
        assert gguf.find_converter(str(tmp_path)) == script
        assert gguf.find_converter(str(script)) == script
        script.chmod(0o755)
        assert gguf.find_converter(None) == script

    def test_a_tokenizer_of_characters_has_no_gguf(self, tmp_path: Path) -> None:
        tokenizer, _ = load_tokenizer(builtin())
        with pytest.raises(ExportError, match=r"WordLevel; the built-in model reads characters\); use --format merged"):
            gguf.check_tokenizer(tokenizer)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["llama-3.1", "qwen2.5"])
    def test_real_tokenizers_have(self, kind: str, shared: Path) -> None:
        from transformers import AutoTokenizer

        gguf.check_tokenizer(AutoTokenizer.from_pretrained(shared / "models" / "tokenizers" / kind))

    def test_the_converter_gets_the_model_and_its_last_error_is_told(self, tmp_path: Path) -> None:
        script, target = tmp_path / gguf.SCRIPT, tmp_path / "x.gguf"
        script.write_text("import sys; open(sys.argv[3], 'w').write(' '.join(sys.argv[1:]))")
        gguf.convert(script, tmp_path / "model", target, "bfloat16")
        assert target.read_text() == f"{tmp_path / 'model'} --outfile {target} --outtype bf16"
        target.unlink()
        script.write_text("print('INFO: hello')\nraise NotImplementedError('BPE pre-tokenizer was not recognized')")
        with pytest.raises(
            ExportError, match=r"exit code 1\): NotImplementedError: BPE pre-tokenizer .*--format merged"
        ):
            gguf.convert(script, tmp_path / "model", target, "float16")
        script.write_text("")
        with pytest.raises(ExportError, match=r"exit code 0\): no output"):
            gguf.convert(script, tmp_path / "model", target, "float16")

    def test_a_file_that_cannot_be_loaded_back_is_no_export(self, tmp_path: Path) -> None:
        (tmp_path / "x.gguf").write_bytes(b"no such format")
        with pytest.raises(ExportError, match=r"x.gguf: was converted, but transformers cannot load it"):
            read_back("gguf", tmp_path, builtin().model, torch.device("cpu"))
