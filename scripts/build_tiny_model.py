"""Make the built-in models: `python scripts/build_tiny_model.py` writes gtpo_cli/models/builtin/tiny.

With `--steps 250 --out gtpo_cli/models/builtin/weak` it writes the weak one: the same after an eighth of the warm
start. It hardly ever gets an answer right, and its entropy is four times as high.

A LLaMA of 167 thousand parameters learns the arithmetic task from imperfect demonstrations, so that it is imperfect in
the ways reinforcement can mend: it mostly skips its steps (and then is mostly wrong, also greedily), it forgets tags,
it slips. Seeded, one thread, float32: the same commit on the same kind of machine writes the same weights. Those that
ship were made at commit 9ed450b (docs/results.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from gtpo_cli.data import PromptEncoder, arithmetic_problems, imperfect_demonstrations
from gtpo_cli.generation import SamplingParams
from gtpo_cli.generation.transformers_sampler import TransformersSampler
from gtpo_cli.models.tiny import tiny_config, tiny_tokenizer
from gtpo_cli.models.transformers_policy import TransformersPolicy
from gtpo_cli.recipe.schema import OptimizerRecipe, RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.rollout import sample, score
from gtpo_cli.training.microbatch import MicroBatchSize
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.sft import SftParts, completion_of, imitate
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Group

TARGET = Path(__file__).resolve().parent.parent / "gtpo_cli" / "models" / "builtin" / "tiny"


def build(arguments: argparse.Namespace) -> TransformersPolicy:
    """Train the model from scratch."""
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    tokenizer = tiny_tokenizer()
    model = LlamaForCausalLM(tiny_config(len(tokenizer)))
    policy = TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=2048)
    count = arguments.steps * arguments.batch
    problems = arithmetic_problems(arguments.problems, split="train", seed=arguments.seed)
    repeated = [problems[i % len(problems)] for i in range(count)]
    texts = imperfect_demonstrations(
        repeated,
        skip_steps=arguments.skip_steps,
        forget_last=arguments.forget_last,
        miss_tag=arguments.miss_tag,
        wrong_answer=arguments.wrong_answer,
        seed=arguments.seed,
    )
    encoder = PromptEncoder(tokenizer, None)
    recipe = OptimizerRecipe(
        name="adamw",
        learning_rate=arguments.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        max_grad_norm=1.0,
        warmup_ratio=0.05,
    )
    updater = Updater(policy.trainable_parameters(), recipe, total_steps=arguments.steps)
    parts = SftParts(policy, updater, MicroBatchSize("auto", longest_row=64, packed=policy.packs, warn=print))
    for step in range(arguments.steps):
        rows = range(step * arguments.batch, (step + 1) * arguments.batch)
        groups = [
            Group(repeated[i], encoder.encode(repeated[i].question), (completion_of(texts[i], tokenizer),))
            for i in rows
        ]
        metrics = imitate(parts, groups, clock=Stopwatch())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {metrics['optim/loss']:.4f}")
    return policy


def describe(policy: TransformersPolicy, *, temperature: float, count: int = 500) -> str:
    """Format and accuracy on test problems."""
    encoder = PromptEncoder(policy.tokenizer, None)
    prompts = [(p, encoder.encode(p.question)) for p in arithmetic_problems(count, split="test", seed=0)]
    params = SamplingParams(temperature=temperature, max_completion_tokens=64, seed=1)
    with Scorer(RewardsRecipe()) as scorer:
        groups = score(sample(TransformersSampler(policy), prompts, 1, params), scorer)
    verdicts = [group.verdicts[0] for group in groups]
    strict = sum(verdict.strict_format for verdict in verdicts) / count
    correct = sum(verdict.correct for verdict in verdicts) / count
    return f"temperature {temperature:g}: strict format {strict:.3f}, accuracy {correct:.3f} ({count} test problems)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=TARGET)
    parser.add_argument("--seed", type=int, default=3407)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--problems", type=int, default=20_000)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--skip-steps", type=float, default=0.5)
    parser.add_argument("--forget-last", type=float, default=0.6)
    parser.add_argument("--miss-tag", type=float, default=0.25)
    parser.add_argument("--wrong-answer", type=float, default=0.1)
    arguments = parser.parse_args()
    policy = build(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    policy.save(arguments.out)
    for temperature in (1.0, 1e-4):
        print(describe(policy, temperature=temperature))
    size = sum(file.stat().st_size for file in arguments.out.iterdir())
    print(f"{arguments.out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
