"""Make the built-in models: `python scripts/models/build_tiny_model.py` writes gtpo_cli/policy/builtin/tiny.

With `--steps 250 --out gtpo_cli/policy/builtin/weak` it writes the weak one: the same after an eighth of the warm
start. It hardly ever gets an answer right, and its entropy is four times as high.

A LLaMA of 167 thousand parameters learns the arithmetic task from imperfect demonstrations, so that it is imperfect in
the ways reinforcement can mend: it mostly skips its steps (and then is mostly wrong, also greedily), it forgets tags,
it slips. Seeded, one thread, float32: the same commit on the same kind of machine writes the same weights. Those that
ship were made at commit 9ed450b (docs/results.md).
"""

from __future__ import annotations

import argparse
import random
import re
import string
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from gtpo_cli.data import PromptEncoder, completion_of, wrap_solution
from gtpo_cli.policy.packing import training_budget
from gtpo_cli.policy.sampler import SamplingParams, sample
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe.schema import OptimizerRecipe, RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.rewards.extract import TAGS
from gtpo_cli.tasks.arithmetic import running_sums, worked_solution
from gtpo_cli.tasks.making import arithmetic_problems
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.sft import imitate
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Group, Problem

TARGET = Path(__file__).resolve().parents[2] / "gtpo_cli" / "policy" / "builtin" / "tiny"
SEED, BATCH, PROBLEMS = 3407, 64, 20_000
WORDS = ("reasoning", "answer")  # one token each, so that a tag is three tokens: "<", "reasoning", ">"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<user>", "<assistant>")

# System messages are left out: the model never saw one. Every turn is one marker and the text.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<user>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<assistant>{{ message['content'] }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def chat_tokenizer(words: Iterable[str]) -> Any:
    """A character-level tokenizer over printable ASCII and newline, with these words as single tokens and
    CHAT_TEMPLATE."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = string.digits + string.ascii_letters + string.punctuation + " \n"
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *words, *characters))}
    longest_first = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(longest_first + r"|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        additional_special_tokens=["<user>", "<assistant>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def small_llama(vocab_size: int, *, hidden: int = 64, layers: int = 3, heads: int = 2) -> Any:
    """The shape, with tied embeddings and a feed-forward part three times as wide."""
    from transformers import AutoConfig

    return AutoConfig.for_model(
        "llama",
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL.index("<pad>"),
        bos_token_id=SPECIAL.index("<s>"),
        eos_token_id=SPECIAL.index("</s>"),
    )


def imperfect_demonstrations(
    problems: Iterable[Problem],
    *,
    skip_steps: float = 0.5,
    forget_last: float = 0.6,
    miss_tag: float = 0.25,
    wrong_answer: float = 0.1,
    seed: int,
) -> list[str]:
    """One completion for each problem, for the warm start of a model that reinforcement can still teach something.

    Each fault is drawn with its rate (0..1). A demonstration either skips the steps (`skip_steps`: nothing between the
    reasoning tags), and then often forgets the last term of the question (`forget_last` of those); or it shows them,
    and sometimes its answer is off by 1 to 3 all the same (`wrong_answer` of those). One of the four tags may
    be missing (`miss_tag`). So who skips the steps is mostly wrong, in one and the same way: a model that imitates this
    is wrong greedily too, and can learn that showing its steps pays.
    """
    rng = random.Random(seed)
    texts = []
    for problem in problems:
        sums = running_sums(problem.question)
        if rng.random() < skip_steps:
            steps, answer = "", sums[-2] if rng.random() < forget_last else sums[-1]
        else:
            off = rng.choice((-3, -2, -1, 1, 2, 3)) if rng.random() < wrong_answer else 0
            steps, answer = worked_solution(problem.question), sums[-1] + off
        text = wrap_solution(steps, str(answer))
        texts.append(text.replace(rng.choice(TAGS), "") if rng.random() < miss_tag else text)
    return texts


def train(
    policy: TransformersPolicy,
    problems: Sequence[Problem],
    texts: Sequence[str],
    *,
    learning_rate: float,
    warmup_ratio: float,
    total_steps: int,
    longest_row: int,
    after: Callable[[int], object] = lambda step: None,
) -> None:
    """Imitate the texts, BATCH a step. `total_steps`: of the schedule, which may be longer. `after` gets each step's
    number."""
    encoder = PromptEncoder(policy.tokenizer, None)
    recipe = OptimizerRecipe(
        name="adamw", learning_rate=learning_rate, betas=(0.9, 0.95), weight_decay=0.1, max_grad_norm=1.0,
        warmup_ratio=warmup_ratio,
    )  # fmt: skip
    updater = Updater(policy.trainable_parameters(), recipe, total_steps=total_steps)
    size = training_budget("auto", longest_row=longest_row, warn=print)
    for step in range(1, len(problems) // BATCH + 1):
        rows = slice((step - 1) * BATCH, step * BATCH)
        groups = [
            Group(problem, encoder.encode(problem.question), (completion_of(text, policy.tokenizer),))
            for problem, text in zip(problems[rows], texts[rows], strict=True)
        ]
        metrics = imitate(policy, updater, size, groups, clock=Stopwatch())
        if step % 100 == 0:
            print(f"step {step}: loss {metrics['optim/loss']:.4f}", flush=True)
        after(step)


def build(steps: int) -> TransformersPolicy:
    """Train the model from scratch."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = chat_tokenizer(WORDS)
    model = AutoModelForCausalLM.from_config(small_llama(len(tokenizer)))
    policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=2048)
    problems = arithmetic_problems(PROBLEMS, split="train", seed=SEED)
    repeated = [problems[i % len(problems)] for i in range(steps * BATCH)]
    texts = imperfect_demonstrations(repeated, seed=SEED)
    train(policy, repeated, texts, learning_rate=5e-3, warmup_ratio=0.05, total_steps=steps, longest_row=64)
    return policy


def describe(policy: TransformersPolicy, *, temperature: float, count: int = 500) -> str:
    """Format and accuracy on test problems."""
    encoder = PromptEncoder(policy.tokenizer, None)
    prompts = [(p, encoder.encode(p.question)) for p in arithmetic_problems(count, split="test", seed=0)]
    params = SamplingParams(temperature=temperature, max_completion_tokens=64, seed=1)
    with Scorer(RewardsRecipe()) as scorer:
        groups = scorer.score_groups(sample(TransformersSampler(policy), prompts, 1, params))
    verdicts = [group.verdicts[0] for group in groups]
    strict = sum(verdict.strict_format for verdict in verdicts) / count
    correct = sum(verdict.correct for verdict in verdicts) / count
    return f"temperature {temperature:g}: strict format {strict:.3f}, accuracy {correct:.3f} ({count} test problems)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=TARGET)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    policy = build(arguments.steps)
    arguments.out.mkdir(parents=True, exist_ok=True)
    policy.save(arguments.out)
    for temperature in (1.0, 1e-4):
        print(describe(policy, temperature=temperature))
    size = sum(file.stat().st_size for file in arguments.out.iterdir())
    print(f"{arguments.out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
