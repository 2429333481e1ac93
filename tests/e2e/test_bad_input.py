"""Bad input through the command line: what, where and the remedy, exit code 2, a traceback only with --debug."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import GTPO, Run, environment
from series import series

import gtpo_cli


def train(*settings: str, recipe: str = "tiny_arithmetic") -> list[str]:
    return ["train", "-q", "--recipe", recipe, *(part for setting in settings for part in ("--set", setting))]


def test_each_kind_of_bad_input_ends_in_one_clear_error(tmp_path: Path) -> None:
    builtin = Path(gtpo_cli.__file__).parent / "policy" / "builtin" / "tiny"
    cut, short = tmp_path / "cut", tmp_path / "short"
    shutil.copytree(builtin, cut)
    os.truncate(cut / "model.safetensors", 5000)
    shutil.copytree(builtin, short)
    configuration = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(configuration | {"max_position_embeddings": 6}))
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "bad.jsonl").write_text('{"question": "1+1?"}\n[1]\nnot JSON\n')
    (tmp_path / "wide.jsonl").write_bytes('{"question": "1+1?", "answer": "2"}\n'.encode("utf-16"))
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "laughs.yaml").write_text("a: &a [x, x]\n" + "b: [" + "*a, " * 20_000 + "]\n")
    local = ["data.benchmark=local", "data.columns={question: question, answer: answer}"]
    adapter = ["model.lora={rank: 4, alpha: 4}"]
    cases = [
        (train("rollout.group_size=1"), "--set: rollout.group_size: a group of 1 has no advantage; use 2 or more"),
        (train(recipe="folder.yaml"), "folder.yaml: is a folder; name the recipe's file"),
        (train(recipe="laughs.yaml"), "laughs.yaml: line 2: too many values up to here"),
        (train("data.max_prompt_tokens=4"), "no prompt is left: dropped 4800 rows (4800 prompt too long)"),
        (train("model.name=short"), "the limit is 5; "),  # the model's own context, less a token to answer with
        (train("model.name=cut"), "cut/model.safetensors cannot be read"),
        (train("model.name=nobody/nothing"), "not in the cache, and the hub was not asked (HF_HUB_OFFLINE is set)"),
        (train("model.backend=unsloth", *adapter), "pip install '.[cuda]' -c constraints-cuda.txt in gtpo's checkout"),
        (train(*local, "data.path=empty.jsonl"), "empty.jsonl: is empty"),
        (train(*local, "data.path=bad.jsonl"), "bad.jsonl: no usable problem; dropped 3 rows (1 no column"),
        (train(*local, "data.path=wide.jsonl"), "wide.jsonl: is UTF-16 or UTF-32 text; save it as UTF-8"),
        (train("data.benchmark=gsm8k"), "openai/gsm8k: the hub cannot be reached"),
        (["eval", "nowhere"], "nowhere is no local folder, not in the cache"),
    ]  # fmt: skip
    results = series(tmp_path, [arguments for arguments, _ in cases])
    for (arguments, words), (code, _, error) in zip(cases, results, strict=True):
        assert code == 2, (arguments, error)
        assert words in error, (arguments, error)
        assert error.startswith("error: ")
        assert "Traceback" not in error
        assert len(error) < 2000
    assert not list(tmp_path.glob("runs/*"))  # a run that did not begin leaves nothing behind


def test_all_that_this_machine_lacks_is_told_at_once_and_no_run_begins(gtpo: Run, tmp_path: Path) -> None:
    for arguments in (["train"], ["probe-entropy"]):
        done = gtpo(*arguments, "--recipe", "llama8b_gsm8k", code=2)
        lines = done.stderr.splitlines()
        assert all(line.startswith("error: ") for line in lines)
        assert any("model.name: meta-llama/Llama-3.1-8B-Instruct is no local folder" in line for line in lines)
        assert any("openai/gsm8k: the hub cannot be reached" in line for line in lines)
        assert done.stdout == ""
    shown = gtpo("train", "--recipe", "llama8b_gsm8k", "--dry-run", code=2).stdout
    assert "# cannot start here: model.name: meta-llama/Llama-3.1-8B-Instruct" in shown
    assert "# cannot start here: openai/gsm8k: " in shown
    assert not list(tmp_path.iterdir())


def test_force_starts_all_the_same(gtpo: Run, tmp_path: Path) -> None:
    """Into the next failure, which is the tokenizer's; what was begun is taken back."""
    done = gtpo("train", "--recipe", "llama8b_gsm8k", "--force", code=2)
    assert "training" not in done.stdout
    assert "model.name: meta-llama/Llama-3.1-8B-Instruct is no local folder, not in the cache" in done.stderr
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full, the disk that is always full")
def test_a_full_disk_at_the_output() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*GTPO, "recipes", "show", "tiny_arithmetic"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: output or network: disk full: No space left on device; free some space")
    assert len(done.stderr.splitlines()) == 1


def test_a_fault_of_the_program_keeps_its_traceback(tmp_path: Path) -> None:
    """Raised where a command is carried out: a ValueError, and an OSError that no operating system raised."""
    for exception in ("ValueError('a bug')", "OSError('of a library')"):
        program = (
            "import sys; import gtpo_cli.recipe.load as load; from gtpo_cli.cli.app import main\n"
            f"def broken(*_): raise {exception}\n"
            "load.find_recipe = broken\n"
            "sys.argv = ['gtpo', 'recipes', 'show', 'tiny_arithmetic']\n"
            "main()"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert exception.partition("(")[0] in done.stderr.splitlines()[-1]
