"""gtpo generate as typed: what it answers is what the checkpoint says, what it explains is true."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Any

import forks
import pytest
from commands import GTPO, Run, environment
from terminal import OnTerminal

TRAIN = [
    "train", "-q", "--recipe", "tiny_arithmetic", "--set", "training.max_steps=3", "--set", "training.save_every=1",
    "--set", "objective.initial_entropy=0.16", "--set", "optimizer.learning_rate=0.01",
    "--set", "tracking.wandb.mode=off", "--set", "data.limit=64",
]  # fmt: skip
QUESTIONS = ("3+8-2+5", "9-9+9-1", "2+2+2+2", "9+9+9+9", "1-8-7+4")


def greedy_by_transformers(model_folder: Path, adapter: Path | None, question: str) -> str:
    """The greedy answer by transformers' (and PEFT's) own means alone."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(model_folder)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    ids = tokenizer(f"<s><user>{question}<assistant>", add_special_tokens=False, return_tensors="pt")["input_ids"]
    out = model.generate(input_ids=ids, max_new_tokens=64, do_sample=False)[0, ids.shape[1] :]
    return str(tokenizer.decode(out, skip_special_tokens=True))


def answers(output: str) -> list[str]:
    """The streamed texts: the line under each question."""
    lines = output.splitlines()
    return [lines[i + 1] for i, line in enumerate(lines) if line.startswith("question> ")]


def pipe(folder: Path, arguments: list[str], questions: bytes) -> str:
    done = forks.run([*GTPO, "generate", *arguments], cwd=folder, input=questions, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("lora", "steps"), [("null", (1, 3)), ("{rank: 4, alpha: 4}", (3,))], ids=["all weights", "adapter"]
)
def test_the_trained_model_answers_and_not_its_base(
    gtpo: Run, tmp_path: Path, lora: str, steps: tuple[int, ...]
) -> None:
    from gtpo_cli.policy.tiny import resolve_name

    gtpo(*TRAIN, "--set", f"model.lora={lora}", "--set", "run_name=one")
    base = Path(resolve_name("builtin:tiny"))
    typed = "\n".join(QUESTIONS).encode() + b"\n\n"  # an empty line is no question
    for step in steps:
        model = tmp_path / "runs" / "one" / "checkpoints" / f"step-00000{step}" / "model"
        adapter = None if lora == "null" else model
        expected = [greedy_by_transformers(base if adapter else model, adapter, q) for q in QUESTIONS]
        output = pipe(tmp_path, ["runs/one", "--greedy", "--checkpoint", str(step)], typed)
        assert f"runs/one, step {step} of builtin:tiny; greedy, at most 64 tokens" in output
        assert answers(output) == expected
    untrained = [greedy_by_transformers(base, None, q) for q in QUESTIONS]
    assert untrained != expected
    of_base = pipe(tmp_path, ["runs/one", "--greedy", "--base"], typed)
    assert answers(of_base) == untrained
    assert of_base.splitlines()[-1] == "next: gtpo recipes list"


def test_verdict_parts_and_reward_with_a_gold_answer(gtpo: Run, tmp_path: Path) -> None:
    (tmp_path / "lengths.py").write_text("def long(problem, completion):\n    return len(completion.token_ids)\n")
    rewards = "rewards={format: {weight: 0.5}, length: {weight: 2}, plugins: [{name: lengths:long, weight: 0.1}]}"
    lengths = ["--set", "rollout.max_completion_tokens=20", "--set", "evaluation.max_completion_tokens=64"]
    slow = ["--set", "optimizer.learning_rate=1e-6"]
    gtpo(*TRAIN, "--set", "run_name=one", *slow, "--set", rewards, *lengths)
    ask = ["generate", "runs/one", "2+2+2+2", "--greedy"]
    text = "<reasoning>2+2=4 4+2=6 6+2=8</reasoning><answer>8</answer>"
    tokens = len(text) - 2 * len("reasoninganswer") + 4 + 1  # tags' names are one token each; the end is one more
    right = gtpo(*ask, "--gold", "16/2").stdout.splitlines()
    assert right[1:] == [
        text,
        "  answer   8",
        f"  length   {tokens} tokens, ended by itself",
        "  verdict  correct, the gold answer is 16/2",
        f"  reward   {0.5 * 10 + 10 - 2 + 0.1 * tokens:g} = format 10 x 0.5 + accuracy 10 + length penalty -1 x 2 + "
        f"lengths:long {tokens} x 0.1",
        "next: gtpo recipes list",
    ]
    wrong = gtpo(*ask, "--gold", "88").stdout
    assert "verdict  wrong, the gold answer is 88" in wrong
    assert f"reward   {0.5 * 10 - 2 + 0.1 * tokens:g} = format 10 x 0.5 + accuracy 0 + " in wrong
    cut = gtpo(*ask, "--gold", "8", "--max-tokens", "10").stdout.splitlines()
    assert cut[1:5] == [
        text[: len("<reasoning>") + 7],
        "  answer   none: the four tags do not appear exactly once each and in order",
        "  length   10 tokens, truncated: it reached --max-tokens",
        "  verdict  wrong, the gold answer is 8",
    ]


def test_own_rewards_that_a_typed_question_cannot_feed_are_left_out_and_it_is_said_first(
    gtpo: Run, tmp_path: Path
) -> None:
    """The reward reads a column of the data; a typed question has none."""
    (tmp_path / "levels.py").write_text(
        "def by_level(prompts, completions, level, **_): return [float(n) for n in level]\n"
    )
    (tmp_path / "mine.jsonl").write_text('{"question": "1+1", "answer": "2", "level": 3}\n')
    data = ["--set", "data={benchmark: local, path: mine.jsonl}", "--set", "data.max_prompt_tokens=64"]
    own = ["--set", "rewards.plugins=[{name: levels:by_level}]"]
    gtpo(*TRAIN, "--set", "run_name=one", *data, *own)
    said = gtpo("generate", "runs/one", "2+2", "--greedy", "--gold", "4").stdout.splitlines()
    assert said[0].startswith("your own rewards are left out: reward levels:by_level: asks for the column level, which")
    (reward,) = (line for line in said if line.startswith("  reward "))
    assert "levels" not in reward


def test_answers_differ_within_a_session_and_repeat_with_the_seed(gtpo: Run) -> None:
    ask = ["generate", "builtin:tiny", "3+8-2+5", "--count", "6", "--gold", "14", "--temperature", "1.5"]
    first, again, other = (gtpo(*ask, "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again != other
    texts = re.findall(r"-- answer \d of 6\n(.*)\n", first)
    assert len(texts) == 6
    assert len(set(texts)) > 1
    assert f"{first.count('verdict  correct')} of 6 correct" in first


def test_piped_lines_of_any_bytes_and_a_question_too_long_do_not_end_it(tmp_path: Path) -> None:
    typed = b"1+1+1+1\n\xff\xfe\n" + b"1+" * 1500 + b"1\n2+2+2+2"
    ask = ["generate", "builtin:tiny", "--greedy", "--max-tokens", "50"]
    done = forks.run([*GTPO, *ask], cwd=tmp_path, input=typed, env=environment())
    assert done.returncode == 0
    output = done.stdout
    assert output.count("question> ") == 4
    assert output.count("  length   ") == 3
    assert "error: the prompt has 3004 tokens, which leaves no room within 2048" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A model folder like the built-in one whose greedy answers do not end: the end's logit is 0."""
    from safetensors.torch import load_file, save_file

    from gtpo_cli.policy.tiny import resolve_name

    folder = tmp_path / "endless"
    shutil.copytree(resolve_name("builtin:tiny"), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][2] = 0.0  # tied: the output layer too
    (folder / "model.safetensors").unlink()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_interactive_answers_stop_with_ctrl_c_and_the_session_ends_with_ctrl_d(
    tmp_path: Path, endless: Path, on_terminal: OnTerminal
) -> None:
    terminal = on_terminal("generate", str(endless), "--greedy", "--max-tokens", "2000", kind="dumb")
    terminal.wait_for("an empty line or Ctrl-D ends; Ctrl-C stops an answer")
    terminal.wait_for("question> ")
    for _ in range(2):
        terminal.type("2+2+2+2\n")
        terminal.wait_for(r"2\+2\+2\+2\r\n<reasoning>\d")  # it is read long before it is whole
        terminal.type("\x03")
        terminal.wait_for("stopped\r\nquestion> ")
    terminal.type("half a question")
    terminal.wait_for("half a question")
    time.sleep(1.0)  # Python loses a signal that comes while readline handles a key
    terminal.type("\x03")  # the line is dropped
    terminal.wait_for("question> ")
    terminal.type("\x04")
    code, output = terminal.finish(), terminal.raw
    assert "answer " not in output
    assert output.endswith("next: gtpo recipes list\r\n")
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate"], "there is no run here"),
        (["generate", "runs/none", "1+1"], "is not a run folder"),
        (["generate", "What is 1+1?"], "name the run before the question: gtpo generate RUN"),
        (["generate", "builtin:huge", "1+1"], "built in: builtin:tasks, builtin:tiny"),
        (["generate", "models/none", "1+1"], "a relative path starts at the working folder"),
        (["generate", "builtin:tiny", "--gold", "2"], "--gold is the answer to a QUESTION"),
        (["generate", "builtin:tiny", "1+1", "--gold", "\\frac{1}{"], "is not an answer that can be compared"),
        (["generate", "builtin:tiny", "1+1", "--top-p", "0"], "use --greedy"),
        (["generate", "builtin:tiny", "1+1", "--checkpoint", "3"], "only a run has checkpoints"),
        (["generate", "builtin:tiny", " "], "the question is empty"),
    ],
)
def test_errors(gtpo: Run, arguments: list[str], words: str) -> None:
    error = gtpo(*arguments, code=2).stderr
    assert words in re.sub(r"[\s│]+", " ", error)
    assert "Traceback" not in error
