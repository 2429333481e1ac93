"""gtpo init as typed: without a terminal, on one, and what it does not overwrite; gtpo plan --gpu by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Run
from terminal import OnTerminal


def test_what_it_writes_is_planned_and_trains(gtpo: Run, tmp_path: Path) -> None:
    said = gtpo("init", "mine.yaml", "--model", "builtin:tiny", "--benchmark", "arithmetic").stdout
    assert said.splitlines()[-1] == "next: gtpo train --recipe mine.yaml --dry-run"
    text = (tmp_path / "mine.yaml").read_text()
    assert "# prompts: 4800" in gtpo("train", "--recipe", "mine.yaml", "--dry-run").stdout
    assert "exists already" in gtpo("init", "mine.yaml", code=2).stderr
    assert (tmp_path / "mine.yaml").read_text() == text


def test_a_card_by_its_name(gtpo: Run) -> None:
    plan = json.loads(gtpo("plan", "--gpu", "L4", "--json").stdout)
    assert (plan["gpu"], plan["gpu_bytes"]) == ("L4", 22.1 * 2**30)
    error = " ".join(gtpo("plan", "--gpu", "a100", code=2).stderr.replace("│", "").split())
    assert "'a100' is 2 sizes: write a100-40gb or a100-80gb" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "it needs --model, --benchmark or --data too"),
        (["--model", "builtin:tiny"], "it needs --benchmark or --data too"),
        (["--model", "builtin:tiny", "-b", "aime24"], "has no training problems"),
        (["--model", "builtin:tiny", "-b", "gsm"], "did you mean gsm8k?"),
        (["--model", "builtin:tiny", "-b", "local"], "name it with --data"),
        (["--model", "builtin:tiny", "-b", "arithmetic", "--data", "x.jsonl"], "arithmetic is generated"),
        (["--model", "builtin:tiny", "-b", "arithmetic", "--question", "q"], "arithmetic has its own columns"),
        (["--from-config", "train.py", "--answer", "a"], "the split come from --from-config; leave them out"),
    ],
)
def test_errors_leave_no_file(gtpo: Run, tmp_path: Path, arguments: list[str], words: str) -> None:
    assert words in gtpo("init", *arguments, code=2).stderr
    assert not list(tmp_path.iterdir())


def test_a_script_for_trl_is_translated_on_a_narrow_terminal(
    on_terminal: OnTerminal, gtpo: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "args = GRPOConfig(num_generations=4, per_device_train_batch_size=8, max_steps=9, bf16=lucky())\n"
        "GRPOTrainer(model='builtin:tiny', args=args, reward_funcs=[right]).train()\n"
    )
    terminal = on_terminal("init", "mine.yaml", "--from-config", "train.py", "-b", "arithmetic", columns=80)
    assert terminal.finish() == 0, terminal.raw
    lines = " ".join(terminal.raw.split())  # without the line ends of the terminal
    assert "mine.yaml: translated from train.py (TRL)" in lines
    assert "a step is 2 prompts x 4 completions: per_device_train_batch_size 8 x gradient_accumulation_steps 1" in lines
    assert "left out: bf16 = lucky() (line 2): no plain value, and nothing of the script is run" in lines
    assert "left out: reward_funcs = [right] (line 3): move them into a module" in lines
    assert "next: gtpo doctor --recipe mine.yaml" in lines
    assert "ok" in gtpo("recipes", "check", "mine.yaml").stdout
    assert (
        "--from-config; leave it out"
        in gtpo("init", "b.yaml", "--from-config", "train.py", "--gpu", "24", code=2).stderr
    )


def test_on_a_terminal_it_asks(on_terminal: OnTerminal, tmp_path: Path) -> None:
    terminal = on_terminal("init", columns=100)
    terminal.type("builtin:tiny\n")
    terminal.wait_for(r"Train on \(gsm8k, math, arithmetic, word_problems, or a file of your own, or a hub id\)")
    terminal.type("arithmetic\n")
    assert terminal.finish() == 0, terminal.raw
    assert "  benchmark: arithmetic\n" in (tmp_path / "my_recipe.yaml").read_text()


def test_a_split_that_is_not_called_train_is_named(gtpo: Run, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    rows = [
        {"prompt": [{"role": "user", "content": f"{n}+1?"}], "reward_model": {"ground_truth": json.dumps([str(n + 1)])}}
        for n in range(10)
    ]
    (tmp_path / "set/math.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    init = ("init", "mine.yaml", "--model", "builtin:tiny", "--data", "set")
    assert "no file for split train (data.split); found math.jsonl" in gtpo(*init, code=2).stderr
    gtpo(*init, "--split", "math")
    said = gtpo("train", "--recipe", "mine.yaml", "--dry-run").stdout
    assert "# prompts: 9" in said
    assert "split: math" in said
