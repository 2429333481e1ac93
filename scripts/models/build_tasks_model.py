"""Make the second built-in model: `python scripts/models/build_tasks_model.py` writes gtpo_cli/policy/builtin/tasks.

A LLaMA of 1.9 million parameters learns the tasks of the recipe tiny_tasks from imperfect demonstrations. Where a task
has worked solutions, half of the demonstrations skip them, so that reinforcement can teach that steps pay. Training
stops before the model knows its tasks well, which leaves reinforcement something to teach. Its tokens are characters,
whole tags, and the phrases that a task's questions share. Seeded, one thread, float32; it is stored in 16 bits.
It takes 40 minutes on one core, and prints the accuracy by task on problems that are kept from the training split.
"""

from __future__ import annotations

import argparse
import difflib
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from build_tiny_model import BATCH, PROBLEMS, SEED, chat_tokenizer, small_llama, train
from transformers import AutoModelForCausalLM

from gtpo_cli.data import PromptEncoder, wrap_solution
from gtpo_cli.policy.sampler import SamplingParams, sample
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import load_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.rewards.extract import TAGS
from gtpo_cli.tasks.making import task_problems
from gtpo_cli.types import Problem

TARGET = Path(__file__).resolve().parents[2] / "gtpo_cli" / "policy" / "builtin" / "tasks"
RECIPE = load_recipe("tiny_tasks")
SHORTEST = 5  # characters of a phrase
VALIDATION = 100  # problems of each task
STEPS, STOP = 4000, 2400  # of the schedule of the learning rate; when it has learned enough
SKIP_STEPS, MISS_TAG = 0.5, 0.15  # shares of the demonstrations


def problems_of(count: int, seed: int) -> list[list[Problem]]:
    """So many training problems of each task of the recipe."""
    return [
        list(task_problems(source.benchmark, source.config, "train", seed, count)) for source in RECIPE.data.sources
    ]


def phrases(questions: Sequence[str], *, seed: int, pairs: int = 200) -> list[str]:
    """Texts that the questions of a task share: blocks that many pairs of them have in common, without digits or parts
    of words at their ends."""
    draw, found = random.Random(seed), Counter[str]()
    for _ in range(pairs):
        one, other = draw.sample(questions, 2)
        for block in difflib.SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
            text = one[block.a : block.a + block.size]
            if block.a:
                text = re.sub(r"^[\w'.-]*(?=\W)", "", text)
            if block.a + block.size < len(one):
                text = re.sub(r"(?<=\W)[\w'.-]*$", "", text)
            if len(text.strip()) >= SHORTEST:
                found[text] += 1
    return [text for text, count in found.most_common(12) if count >= pairs / 10]


def demonstrations(problems: Sequence[Problem]) -> list[str]:
    """A completion for each problem: a worked one is skipped, and a tag is missing, at the rates above."""
    draw = random.Random(SEED)
    texts = []
    for problem in problems:
        steps = "" if draw.random() < SKIP_STEPS else problem.solution or ""
        text = wrap_solution(steps, problem.gold)
        texts.append(text.replace(draw.choice(TAGS), "") if draw.random() < MISS_TAG else text)
    return texts


def build() -> None:
    """Train the model from scratch, and write it."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    by_task = problems_of(PROBLEMS + VALIDATION, SEED)
    words = list(TAGS)
    for problems in by_task:
        words += phrases([problem.question for problem in problems[:500]], seed=SEED)
    tokenizer = chat_tokenizer(tuple(dict.fromkeys(words)))
    print(f"{len(tokenizer)} tokens", flush=True)
    model = AutoModelForCausalLM.from_config(small_llama(len(tokenizer), hidden=192, layers=4, heads=4))
    policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=512)
    kept = [problem for problems in by_task for problem in problems[:VALIDATION]]
    unseen = {problem.question for problem in kept}
    pools = [[problem for problem in problems if problem.question not in unseen] for problems in by_task]
    draw = random.Random(SEED)
    asked = [draw.choice(pools[place % len(pools)]) for place in range(STOP * BATCH)]
    texts = demonstrations(asked)

    def look(step: int) -> None:
        if step % 400 == 0:
            for temperature in (1e-4, 1.0):
                print(describe(policy, kept, temperature=temperature), flush=True)

    train(policy, asked, texts, learning_rate=2e-3, warmup_ratio=0.03, total_steps=STEPS, longest_row=160, after=look)
    save(policy, TARGET)


def describe(policy: TransformersPolicy, problems: Sequence[Problem], *, temperature: float) -> str:
    """Accuracy and format by task."""
    encoder = PromptEncoder(policy.tokenizer, None)
    params = SamplingParams(temperature=temperature, max_completion_tokens=96, seed=1)
    with Scorer(RECIPE.rewards) as scorer:
        prompts = [(problem, encoder.encode(problem.question)) for problem in problems]
        groups = scorer.score_groups(sample(TransformersSampler(policy), prompts, 1, params))
    found: dict[str, list[tuple[bool, bool]]] = {}
    for group in groups:
        (verdict,) = group.verdicts
        name = group.problem.id.split("/")[1]
        found.setdefault(name, []).append((verdict.correct, verdict.strict_format))
    words = (
        f"{name} {sum(right for right, _ in rows) / len(rows):.2f} ({sum(kept for _, kept in rows) / len(rows):.2f})"
        for name, rows in found.items()
    )
    return f"temperature {temperature:g}, accuracy (format): {', '.join(words)}"


def save(policy: TransformersPolicy, folder: Path) -> None:
    """Write the model in 16 bits."""
    folder.mkdir(parents=True, exist_ok=True)
    policy.save(folder)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    build()


if __name__ == "__main__":
    main()
