"""A run folder, a model and data of a stranger, through the commands as they are typed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
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
            (["compare", "runs/one@base", "runs/one", "--markdown"], 0),
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


def test_a_run_folder_does_not_switch_on_code_of_a_model(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "runs", tmp_path / "runs")
    file = tmp_path / "runs" / "one" / "recipe.yaml"
    recipe = yaml.safe_load(file.read_text())
    recipe["model"]["trust_remote_code"] = True
    file.write_text(yaml.safe_dump(recipe))
    flag = "--trust-remote-code"
    commands = [
        ["eval", "runs/one"], ["generate", "runs/one", "1+1?"], ["export", "runs/one"], ["probe-entropy"],
        ["train", "--resume", "runs/one"], ["eval", "runs/one", "--set", "model.trust_remote_code=true"],
    ]  # fmt: skip
    for said in said_by(tmp_path, [(arguments, 2) for arguments in commands]):
        assert "model.trust_remote_code is on in this run's recipe" in said
        assert said.rstrip().endswith(f"if you trust it, add {flag}")
    asked = ["generate", "runs/one", "1+1?", "--max-tokens", "2", flag]
    said_by(tmp_path, [(asked, 0), (["inspect", "runs/one"], 0)])  # to inspect loads no model


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


def test_neither_a_model_s_folder_nor_a_sweep_s_is_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "models").symlink_to(tmp_path / "elsewhere")
    sweep = {"about": "one", "recipe": "tiny_arithmetic", "seeds": [1], "variants": {"a": {"training.max_steps": 1}}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(sweep))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "charts").symlink_to(tmp_path / "elsewhere")
    asked = ["eval", "builtin:tiny", "--limit", "1", "--set", "evaluation.samples=1"]
    for said in said_by(tmp_path, [(asked, 2), (["sweep", "s.yaml", "--out", "out"], 2)]):
        assert "is a link to another folder" in said
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_start_takes_what_its_manifest_names_and_no_more(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "runs", tmp_path / "runs")
    (model,) = (tmp_path / "runs" / "one" / "checkpoints").glob("*/model")
    (model / "not_named.txt").write_text("a secret")
    two = train("two", "training.max_steps=1", "data.limit=64")
    said_by(tmp_path, [([*two, "--from", "runs/one"], 0)])
    start = tmp_path / "runs" / "two" / "start"
    assert {file.name for file in start.iterdir()} == {
        "start.json", *(file.name for file in model.iterdir() if file.name != "not_named.txt")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (lambda file: file.symlink_to("/dev/zero"), "adapter_model.safetensors: is no regular file; get it again"),
        (lambda file: os.mkfifo(file), "adapter_model.safetensors: is no regular file; get it again"),
        (lambda file: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 2**42), "has 4,398,046,511,104 bytes, but"),
    ],
    ids=["endless", "FIFO", "4 TiB"],
)  # fmt: skip
def test_an_adapter_that_would_fill_the_disk_is_not_copied(
    tmp_path: Path, weights: Callable[[Path], object], said: str
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    weights(adapter / "adapter_model.safetensors")
    settings = ["model.lora={rank: 4, alpha: 4, target_modules: [q_proj]}", "model.load_in_4bit=false"]
    shown = ended(tmp_path, [*train("two", *settings), "--from", "adapter"], code=2)
    assert f"adapter_model.safetensors: {said.partition(': ')[2] or said}" in shown
    assert not (tmp_path / "runs" / "two").exists()


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


def test_a_question_of_15_mb_is_dropped_within_the_memory_of_any_other(tmp_path: Path) -> None:
    """It took 6.2 GB. Grown by more than half a gigabyte beyond a run without it, it fails."""
    good = {"question": "3+4-2=?", "answer": "5"}
    measured = tmp_path / "measured.py"
    measured.write_text(
        "import resource, sys; from gtpo_cli.cli.app import main; sys.argv[0] = 'gtpo'\n"
        "try: main()\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for long in (False, True):
        rows = [good, good | {"question": "12 + 3 " * 2_200_000}] if long else [good]
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        columns = "data.columns={question: question, answer: answer}"
        arguments = [*train("x", "data.benchmark=local", "data.path=train.jsonl", columns), "--dry-run"]
        done = forks.run([str(measured), *arguments], cwd=tmp_path, env=environment())
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.splitlines()[-1]))
        assert ("1 prompt too long): train.jsonl:2 prompt too long: over" in done.stdout) == long
    assert peaks[1] - peaks[0] < 512 * 1024  # KiB
