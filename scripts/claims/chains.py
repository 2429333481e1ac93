"""The task and the base of the third round: chains of additions and subtractions.

A question is "12+7-45+3", worked from left to right: "12+7=19 19-45=-26 -26+3=-23". Operands have one or two digits.
A question is held out when a hash of its text says so, so that no seed can put it into training.

    python scripts/claims/chains.py      # pre-train the base again, a LLaMA of 1.25 million weights (seven minutes)
"""

from __future__ import annotations

import hashlib
import json
import operator
import random
import re
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from gtpo_cli.data import PromptEncoder, completion_of, wrap_solution
from gtpo_cli.policy.packing import training_budget
from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.recipe.schema import OptimizerRecipe
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.sft import imitate
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Group, Problem

OPERATIONS = {"+": operator.add, "-": operator.sub}
HELD_OUT = {"validation": 0, "test": 1}  # of 20 questions, one each; the others are for training
TRAINED_LENGTH, TESTED_LENGTHS = 3, (3, 4, 5)  # operations in a question
TRAINING_PROBLEMS, HELD_OUT_PROBLEMS = 40_000, {"validation": 500, "test": 1000}

# the base: where it is, shape, demonstrations, pre-training
BASE = Path(__file__).parent / "base"
SHAPE = {"hidden_size": 160, "intermediate_size": 640, "num_hidden_layers": 3, "num_attention_heads": 5}
SKIPPED = 0.6  # share of demonstrations that give the answer without their steps
MISSING_TAG = 0.1
STEPS, BATCH, RATE, SEED = 3000, 64, 2e-3, 3407  # STEPS: of the learning rate's schedule
STOP = 2000  # steps made: it has not learned all that it could, which leaves room above it


def question_of(rng: random.Random, operations: int) -> str:
    """A question at random: each operand has one or two digits with equal chance."""
    text = str(_operand(rng))
    for _ in range(operations):
        text += rng.choice("+-") + str(_operand(rng))
    return text


def _operand(rng: random.Random) -> int:
    return rng.randint(0, 9) if rng.random() < 0.5 else rng.randint(10, 99)


def worked(question: str) -> tuple[str, int]:
    """The steps, one operation at a time from left to right, and the last result."""
    first, *rest = re.findall(r"[+-]|\d+", question)
    value, steps = int(first), []
    for sign, operand in zip(rest[::2], rest[1::2], strict=True):
        result = OPERATIONS[sign](value, int(operand))
        steps.append(f"{value}{sign}{operand}={result}")
        value = result
    return " ".join(steps), value


def split_of(question: str) -> str:
    """Is it "train", "validation" or "test", by a hash of the text?"""
    place = int.from_bytes(hashlib.blake2b(question.encode(), digest_size=8).digest(), "big") % 20
    return next((name for name, number in HELD_OUT.items() if number == place), "train")


def questions(split: str, operations: int, count: int) -> list[str]:
    """`count` different questions of a split; a larger count begins with those of a smaller one."""
    rng = random.Random(f"{split} {operations}")
    found: dict[str, None] = {}
    while len(found) < count:
        question = question_of(rng, operations)
        if split_of(question) == split:
            found[question] = None
    return list(found)


def demonstrations(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """(question, completion) for the base: chains of two to four operations, every answer right, with two habits that
    reinforcement can mend: SKIPPED of them show no steps, MISSING_TAG of them lack one tag."""
    rows: list[tuple[str, str]] = []
    while len(rows) < count:
        question = question_of(rng, rng.choice((2, 3, 4)))
        if split_of(question) != "train":
            continue
        steps, answer = worked(question)
        text = wrap_solution("" if rng.random() < SKIPPED else steps, str(answer))
        tag = rng.choice(("<reasoning>", "</reasoning>", "<answer>", "</answer>"))
        rows.append((question, text.replace(tag, "") if rng.random() < MISSING_TAG else text))
    return rows


def build_base(folder: Path) -> None:
    """Pre-train the base from scratch: one thread, seeded."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(resolve_name("builtin:tiny"))
    config = AutoConfig.for_model(
        "llama",
        vocab_size=len(tokenizer),
        **SHAPE,
        num_key_value_heads=SHAPE["num_attention_heads"],
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    policy = TransformersPolicy(
        AutoModelForCausalLM.from_config(config), tokenizer, temperature=1.0, max_seq_length=512
    )
    recipe = OptimizerRecipe(
        name="adamw", learning_rate=RATE, betas=(0.9, 0.95), weight_decay=0.1, max_grad_norm=1.0, warmup_ratio=0.05
    )
    updater = Updater(policy.trainable_parameters(), recipe, total_steps=STEPS)
    budget = training_budget("auto", longest_row=96, warn=print)
    encoder, rng = PromptEncoder(tokenizer, None), random.Random(SEED)
    for step in range(1, STOP + 1):
        groups = [
            Group(Problem(str(i), question, "", source=""), encoder.encode(question), (completion_of(text, tokenizer),))
            for i, (question, text) in enumerate(demonstrations(rng, BATCH))
        ]
        metrics = imitate(policy, updater, budget, groups, clock=Stopwatch())
        if step % 250 == 0:
            print(f"step {step}: loss {metrics['optim/loss']:.4f}", flush=True)
    policy.save(folder)


def write_data(folder: Path) -> None:
    """train.jsonl of three operations, and validation and test of each length."""
    folder.mkdir(parents=True, exist_ok=True)
    sets = {"train": ("train", TRAINED_LENGTH, TRAINING_PROBLEMS)}
    for split, count in HELD_OUT_PROBLEMS.items():
        for operations in TESTED_LENGTHS:
            sets[f"{split}{operations}"] = (split, operations, count)
    for name, (split, operations, count) in sets.items():
        lines = []
        for question in questions(split, operations, count):
            steps, answer = worked(question)
            lines.append(json.dumps({"question": question, "solution": steps, "gold": str(answer)}) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    build_base(BASE)
