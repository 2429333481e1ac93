"""The training half of a step on a GPU: seconds and peak memory, against the same step with full logits, and the plan.

    python benchmarks/gpu.py [--out build/bench]        # both shapes, G 8 and 12, T 512 and 1500: about ten minutes
    python benchmarks/gpu.py --small                    # a small shape, anywhere: whether the script works

The policy is a 4-bit model of the published shape with random weights (shaped_model.py) and the paper's adapter;
prompts of 287 tokens, completions all of length T. A step is forward, backward and the optimiser's update, as many
completions at a time as `gtpo train` would take. Times are taken with the GPU at rest before and after (wall clock),
the two paths taking turns; the figure is the median over rounds of the ratio. Peak memory is the allocator's.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from measure import Figure, write
from shaped_model import shaped_policy
from torch import Tensor

from gtpo_cli.job import Engines
from gtpo_cli.machine.memory import CONTEXT, memory_of
from gtpo_cli.machine.shapes import PUBLISHED, ModelShape
from gtpo_cli.objective import Rows
from gtpo_cli.policy.packing import Budget, training_budget
from gtpo_cli.policy.sampler import collate
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.types import Completion, Group, Problem

TITLE = "Training half of a step on a GPU"
PROMPT = 287  # the longest of GSM8K
SMALL = ModelShape(2, 64, 128, 4, 2, 16, 512, tied=False)


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    group_size: int
    completion: int
    prompt: int


def run(*, small: bool, rounds: int) -> list[Figure]:
    """All figures. A shape's model is built once."""
    shapes = (
        {"small": SMALL} if small else {"LLaMA-3.1-8B": _published("Llama-3.1-8B"), "Qwen2.5-3B": _published("Qwen")}
    )
    sizes = [(2, 8)] if small else [(8, 512), (8, 1500), (12, 512), (12, 1500)]
    figures = []
    for name, shape in shapes.items():
        recipe = recipe_for(name)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        policy = shaped_policy(shape, recipe, device, dtype)
        for group_size, completion in sizes:
            case = Case(name, group_size, completion, 6 if small else PROMPT)
            figures += measure(policy, recipe, shape, case, rounds=rounds)
        del policy
    return figures


def _published(part: str) -> ModelShape:
    return next(shape for name, shape in PUBLISHED.items() if part in name)


def recipe_for(name: str) -> Recipe:
    """The paper's recipe for the shape; the small one has the adapter's rank cut down."""
    if name == "small":
        changes = ["model.lora={rank: 4, alpha: 4}", "optimizer.name=adamw", "model.max_seq_length=128"]
        return load_recipe("llama8b_gsm8k", [*changes, "data.max_prompt_tokens=64"])
    return load_recipe("llama8b_gsm8k" if "LLaMA" in name else "qwen3b_gsm8k")


def measure(policy: TransformersPolicy, recipe: Recipe, shape: ModelShape, case: Case, *, rounds: int) -> list[Figure]:
    """Seconds and peak memory of both paths, and the plan beside ours."""
    rows = full_rows(policy, case)
    updater = Updater(policy.trainable_parameters(), recipe.optimizer, total_steps=1000)
    longest = case.prompt + case.completion
    paths: dict[str, Callable[[Rows], tuple[Tensor, Tensor]]] = {
        "gtpo": policy.token_logprobs,
        "full logits": partial(full_logits, policy),
    }
    steps: dict[str, Callable[[], None]] = {}
    budgets: dict[str, Budget] = {}
    peaks: dict[str, float] = {}
    for path, logprobs in paths.items():
        budgets[path] = training_budget("auto", longest_row=longest, warn=print)
        steps[path] = partial(train_half, updater, rows, budgets[path], logprobs, packed=path == "gtpo")
        steps[path]()  # warm, and the budget settled
        peaks[path] = peak_of(policy.device, steps[path])
    seconds: dict[str, list[float]] = {path: [] for path in paths}
    for turn in range(rounds):
        for path in list(paths) if turn % 2 == 0 else list(paths)[::-1]:
            seconds[path].append(timed(policy.device, steps[path]))
    name = f"{case.name}, G {case.group_size}, T {case.completion}"
    ratio = statistics.median(a / b for a, b in zip(seconds["gtpo"], seconds["full logits"], strict=True))
    ours, theirs = (statistics.median(seconds[path]) for path in paths)
    note = f"{budgets['gtpo']} at a time; full logits {theirs:.3g} s, {budgets['full logits']} at a time"
    memory = memory_of(
        recipe, shape, Engines("transformers", "transformers", False), prompt_tokens=case.prompt,
        completion_tokens=case.completion, gpu=math.inf, limit=budgets["gtpo"].limit,
    )  # fmt: skip
    planned = memory.forward - CONTEXT
    return [
        Figure(f"{name}: seconds", ours, "s", note=note),
        Figure(f"{name}: seconds over full logits", ratio, ""),
        Figure(f"{name}: peak memory", peaks["gtpo"] / 2**30, "GiB", note=f"planned {planned / 2**30:.2f} GiB"),
        Figure(f"{name}: peak memory with full logits", peaks["full logits"] / 2**30, "GiB"),
    ]


def full_rows(policy: TransformersPolicy, case: Case) -> Rows:
    """One group whose completions all have the greatest length; random token ids."""
    generator = torch.Generator().manual_seed(0)
    size = len(policy.tokenizer)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(8, size, (count,), generator=generator).tolist())

    completions = tuple(
        Completion(draw(case.completion), (0.0,) * case.completion, "length", "") for _ in range(case.group_size)
    )
    return collate([Group(Problem("p", "q", "1"), draw(case.prompt), completions)], device=policy.device)


def full_logits(policy: TransformersPolicy, rows: Rows) -> tuple[Tensor, Tensor]:
    """What `token_logprobs` computes, through logits of the whole vocabulary and autograd."""
    policy.model.train()
    prompt = rows.prompt_ids_BP[rows.prompt_N]
    ids = torch.cat([prompt, rows.ids_NT], dim=1)
    logits = policy.model(input_ids=ids, use_cache=False).logits[:, prompt.shape[1] - 1 : -1].float()
    logits = logits / policy.temperature
    logp_all = torch.log_softmax(logits, dim=-1)
    logp = logp_all.gather(-1, ids[:, prompt.shape[1] :, None])[..., 0]
    with torch.no_grad():
        entropy = -(logp_all.exp() * logp_all).sum(dim=-1)
    return logp, entropy


def train_half(
    updater: Updater,
    rows: Rows,
    budget: Budget,
    logprobs: Callable[[Rows], tuple[Tensor, Tensor]],
    *,
    packed: bool,
) -> None:
    """Forward and backward of all completions, then the update."""

    def work(limit: int) -> None:
        updater.zero_grad()
        for index in rows.split(limit, unit=budget.unit, packed=packed):
            logp, entropy = logprobs(rows[index])
            loss = -(logp.mean(dim=-1) * (1.0 - 0.1 * entropy.mean(dim=-1))).mean()
            loss.backward()  # type: ignore[no-untyped-call]  # torch ships it untyped

    budget.run(work, at_most=rows.size(budget.unit))
    updater.update()


def timed(device: torch.device, work: Callable[[], None]) -> float:
    """Wall-clock seconds with the GPU at rest before and after."""
    synchronise(device)
    start = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - start


def peak_of(device: torch.device, work: Callable[[], None]) -> float:
    """Most bytes allocated at a time; 0 on a CPU, where nobody counts."""
    if device.type != "cuda":
        work()
        return 0.0
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return float(torch.cuda.max_memory_allocated(device))


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--small", action="store_true", help="a small shape, to see whether the script works")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not arguments.small and not torch.cuda.is_available():
        raise SystemExit("no GPU: these figures need one (--small tries the script without)")
    title = TITLE
    if torch.cuda.is_available():
        title += f": {torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}"
    print(write(arguments.out, "gpu", title, run(small=arguments.small, rounds=arguments.rounds)))


if __name__ == "__main__":
    main()
