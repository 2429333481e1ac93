"""A run folder, a model and data of a stranger, through the commands as they are typed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import forks
import pytest
import yaml
from commands import GTPO, environment
from series import series
from small_runs import gtpo, train

STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    gtpo(folder, train("one", "training.max_steps=1", "data.limit=64"))
    gtpo(folder, ["eval", "runs/one", "--base", "--pass-k", "2", "--limit", "2"])
    return folder


def said_by(folder: Path, commands: list[tuple[list[str], int]]) -> list[str]:
    """Standard output and error of each command, which ends with this exit code: nothing is lost on the way."""
    said = []
    for (arguments, code), done in zip(commands, series(folder, [arguments for arguments, _ in commands]), strict=True):
        assert done.code == code, (arguments, done)
        said.append(done.stdout + done.stderr)
        assert "Traceback" not in said[-1]
    return said


def ended(folder: Path, arguments: list[str], *, code: int) -> str:
    """The same of a process of its own."""
    done = forks.run([*GTPO, *arguments], cwd=folder, env=environment())
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert "Traceback" not in said
    return said


def spoiled(value: Any) -> Any:
    """Every text with sequences that steer a terminal, but those that must be one of a few words."""
    if isinstance(value, dict):
        return {key: item if key in ("finish_reason", "subject", "benchmark") else spoiled(item)
                for key, item in value.items()}  # fmt: skip
    if isinstance(value, list):
        return [spoiled(item) for item in value]
    return value + STEERING if isinstance(value, str) else value


def test_nothing_of_a_run_folder_steers_the_terminal(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "runs", tmp_path / "runs")
    run = tmp_path / "runs" / "one"
    for file in (*(run / "samples").iterdir(), *(run / "evaluation").rglob("samples.jsonl")):
        rows = [spoiled(json.loads(line)) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in (run / "evaluation").rglob("results.json"):
        document = json.loads(file.read_text())
        document["problem_ids"] = spoiled(document["problem_ids"])
        document["scores"]["user:" + STEERING] = document["scores"]["accuracy"]
        file.write_text(json.dumps(document))
    said = said_by(
        tmp_path,
        [
            (["inspect", "runs/one", "--problem", "all"], 0), (["inspect", "runs/one", "--completion", "1"], 0),
            (["inspect", "runs/one", "--problem", "none"], 2), (["compare", "runs/one@base", "runs/one"], 0),
            (["compare", "runs/one@base", "runs/one"], 0),
            (["eval", "runs/one", "--pass-k", "2", "--limit", "2", "--audit"], 0),
        ],
    )  # fmt: skip
    said.append(ended(tmp_path, ["inspect", "runs/one"], code=0))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["model"]["name"] = f"no/such{STEERING}"
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    said.append(ended(tmp_path, ["generate", "runs/one", "1+1?", "--base"], code=2))
    for text in said:
        assert not set(text) & set(STEERING.replace("]0;owned", "").replace("[2J", "").replace("31m", ""))
    assert sum("␛" in text for text in said) >= 6  # it would have


def test_nothing_of_the_data_steers_the_terminal(tmp_path: Path) -> None:
    rows = [{"question": f"1+1?{STEERING}", "answer": "2"}, {"question": "x", "answer": f"{STEERING}?!"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = "data.columns={question: question, answer: answer}"
    data = ["data.benchmark=local", "data.path=train.jsonl", columns, "data.max_prompt_tokens=3"]
    said = ended(tmp_path, train("x", *data), code=2)
    assert "no prompt is left" in said or "no usable problem" in said
    assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(said)


def test_code_in_a_run_folder_is_not_run_by_any_command(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "runs", tmp_path / "runs")
    run = tmp_path / "runs" / "one"
    (run / "hack.py").write_text("open('it_ran', 'w')\ndef gold(row):\n    return '2'\n")
    (tmp_path / "own.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["data"] |= {"benchmark": "local", "path": "own.jsonl", "gold": "runs/one/hack.py:gold", "held_out": 0.0}
    recipe["evaluation"]["benchmarks"] = ["local"]
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    commands = [
        ["eval", "runs/one"], ["eval", "runs/one", "--data-path", "own.jsonl"], ["generate", "runs/one", "1+1?"],
        ["export", "runs/one"], ["probe-entropy"], ["try-reward"], ["train", "--resume", "runs/one"],
        ["train", "--resume", "runs/one", "--set", "training.max_steps=2"], ["train", "--from", "runs/one"],
        ["train", "--from", "runs/one", "--dry-run"],
    ]  # fmt: skip
    for said in said_by(tmp_path, [(arguments, 2) for arguments in commands]):
        assert "recipe.yaml: data.gold: the code runs/one/hack.py:gold is in a folder with runs" in said
        assert said.rstrip().endswith("if you trust it, add --trust-run-code")
    assert not (tmp_path / "it_ran").exists()
    trusting = ["probe-entropy", "--trust-run-code", "--set", "objective.probe.num_prompts=1"]
    said_by(tmp_path, [(trusting, 0)])
    assert (tmp_path / "it_ran").exists()


def test_no_command_writes_through_a_link_in_a_run_folder(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("dear")
    (tmp_path / "elsewhere").mkdir()
    links = {"metrics.jsonl": "private", "evaluation": "elsewhere", "export": "elsewhere", "report": "elsewhere"}
    links["checkpoints/.step-000002.tmp"] = "elsewhere"
    commands = [
        ["train", "--resume", "runs/one", "--set", "training.max_steps=2"], ["eval", "runs/one", "--again"],
        ["export", "runs/one"], ["report", "runs/one"], ["inspect", "runs/one", "--html"], ["probe-entropy"],
        ["train", "--from", "runs/one"], ["generate", "runs/one", "1+1"],
    ]  # fmt: skip
    for name, target in links.items():
        shutil.copytree(runs / "runs", tmp_path / "runs")
        link = tmp_path / "runs" / "one" / name
        if link.is_dir():
            shutil.rmtree(link)
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / target)
        for said in said_by(tmp_path, [(arguments, 2) for arguments in commands]):
            assert f"runs/one/{name}: is a link, which a run folder must not contain" in said
        shutil.rmtree(tmp_path / "runs")
    assert (tmp_path / "private").read_text() == "dear"
    assert not list((tmp_path / "elsewhere").iterdir())


# What transformers, PEFT and their like look for, and what they and gtpo import by name: none is a package of ours.
LOOKED_FOR = (
    "hqq", "optimum", "awq", "auto_gptq", "gptqmodel", "aqlm", "eetq", "quanto", "flash_attn", "kernels", "apex",
    "deepspeed", "sentencepiece", "tiktoken", "xformers", "torchvision", "torchaudio", "tensorflow", "jax", "flax",
    "unsloth", "vllm", "my_rewards", "sitecustomize", "usercustomize", "json", "torch", "transformers", "typing",
)  # fmt: skip


@pytest.mark.parametrize("as_module", [False, True], ids=["gtpo", "python -m gtpo_cli"])
def test_no_module_that_lies_in_the_working_folder_is_imported(runs: Path, tmp_path: Path, as_module: bool) -> None:
    """A user goes into somebody's run: cd RUN; gtpo eval ."""
    run = shutil.copytree(runs / "runs" / "one", tmp_path / "run")
    for name in LOOKED_FOR:
        (run / f"{name}.py").write_text(f"open({str(tmp_path / 'it_ran')!r}, 'a').write({name!r})\nraise ImportError\n")
    program = [str(Path(sys.executable).parent / "python"), "-m", "gtpo_cli"] if as_module else GTPO
    for name in ("sitecustomize", "usercustomize", "json", "typing") if as_module else ():
        (run / f"{name}.py").unlink()  # Python itself imports them for -m, before anything of ours
    done = subprocess.run(
        [*program, "eval", ".", "--limit", "1", "--set", "tracking.wandb.mode=off"],
        cwd=run, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "it_ran").exists(), (tmp_path / "it_ran").read_text()
