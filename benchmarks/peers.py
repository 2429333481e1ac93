"""The same work by other libraries: TRL and Liger. Run: `make bench-peers`, in an environment of its own.

- Logits path: log-probability, entropy and gradient of the hidden states. Liger has a fused GRPO loss but no entropy,
  so it gets a pass over the logits for that; TRL has a chunked log-probability with entropy (its asynchronous trainer).
- A whole GRPO step on the built-in model: TRL's GRPOTrainer in its fastest settings for a CPU against ours, with the
  same prompts, rewards and optimiser: with completions that end where they end, and with all of one length.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import objective
import torch
from measure import Figure, interleaved, median_ratio, write
from torch import Tensor

from gtpo_cli.models.transformers_policy import TransformersPolicy
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.rewards import accuracy_reward, format_reward
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.tracking import Trackers
from gtpo_cli.training import loop
from gtpo_cli.training.setup import Setup, set_up
from gtpo_cli.types import Completion, Problem

TITLE = "Other libraries on the same work"
PROMPTS, GROUP, TOKENS = 8, 8, 48
STEPS, WARM = 10, 3


def run(*, rounds: int = 5) -> list[Figure]:
    """About 15 minutes on one core."""
    torch.set_num_threads(1)
    figures = [whole_step(rounds=rounds, ends=ends) for ends in (True, False)]
    for V, H, N in objective.TIMED:
        for dtype in (torch.float32, torch.bfloat16):
            figures += logits_path(V, H, N, dtype, rounds=rounds)
    return figures


# -- logits path ------------------------------------------------------------------------------------------------------


def logits_path(V: int, H: int, N: int, dtype: torch.dtype, *, rounds: int) -> list[Figure]:
    hidden, head, ids, send = objective.inputs(V, H, N)
    arguments = (hidden.detach().to(dtype).requires_grad_(), head.to(dtype), ids, send)
    paths: dict[str, Callable[..., Tensor]] = {"gtpo": objective.gtpo_path, "Liger": liger_path, "TRL": trl_path}
    seconds = interleaved({name: partial(path, *arguments) for name, path in paths.items()}, rounds=rounds)
    note = ", ".join(f"{name} {statistics.median(taken):.2f} s" for name, taken in seconds.items())
    what = f"logits path, V {V}, H {H}, N {N}, {str(dtype).removeprefix('torch.')}: CPU time over"
    return [
        Figure(f"{what} Liger's fused loss and an entropy pass", median_ratio(seconds, "gtpo", "Liger"), "", note),
        Figure(f"{what} TRL's chunked log-probability and entropy", median_ratio(seconds, "gtpo", "TRL"), ""),
    ]


def trl_path(hidden_NH: Tensor, lm_head_VH: Tensor, ids_N: Tensor, send_N: Tensor) -> Tensor:
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    logp, *_ = ChunkedLogProbFunction.apply(
        hidden_NH, lm_head_VH, None, ids_N, objective.TEMPERATURE, 8192, None, 1.0, ("entropy",)
    )
    return torch.autograd.grad(logp, hidden_NH, send_N)[0]


def liger_path(hidden_NH: Tensor, lm_head_VH: Tensor, ids_N: Tensor, send_N: Tensor) -> Tensor:
    """Eight completions, one at a time, as Liger does; the advantages stand for the gradient sent back."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    fused = LigerFusedLinearGRPOLoss(
        beta=0.0, compiled=False, use_ref_model=False, temperature=objective.TEMPERATURE, loss_type="grpo", chunk_size=1
    )
    rows = 8
    length = len(ids_N) // rows
    loss = fused(
        hidden_NH.view(rows, length, -1), lm_head_VH, ids_N.view(rows, length), torch.ones(rows, length), send_N[:rows]
    )
    gradient = torch.autograd.grad(loss[0] if isinstance(loss, tuple) else loss, hidden_NH)[0]
    with torch.no_grad():
        for start in range(0, len(ids_N), length):
            logits = (hidden_NH[start : start + length] @ lm_head_VH.T).float() / objective.TEMPERATURE
            logp = torch.log_softmax(logits, dim=-1)
            _ = -(logp.exp() * logp).sum(dim=-1)
    return gradient


# -- a whole step -----------------------------------------------------------------------------------------------------


def whole_step(*, rounds: int, ends: bool) -> Figure:
    """Median over rounds of the ratio of a step's median CPU time. `ends`: completions end at end-of-sequence."""
    taken: dict[str, list[float]] = {"gtpo": [], "TRL": []}
    for turn in range(rounds):
        for name in list(taken) if turn % 2 == 0 else list(taken)[::-1]:
            seconds = own_steps(ends=ends) if name == "gtpo" else trl_steps(ends=ends)
            taken[name].append(statistics.median(seconds[WARM:]))
    note = ", ".join(f"{name} {1000 * statistics.median(seconds):.0f} ms" for name, seconds in taken.items())
    length = f"at most {TOKENS}" if ends else f"exactly {TOKENS}"
    return Figure(
        f"a GRPO step of the built-in model, {PROMPTS} prompts x {GROUP} completions of {length} tokens: CPU time over "
        f"TRL {version('trl')}", median_ratio(taken, "gtpo", "TRL"), "", note,
    )  # fmt: skip


def recipe_for(folder: str) -> Recipe:
    return load_recipe(
        "tiny_arithmetic",
        ["objective.name=grpo", "objective.kl_coef=0", "objective.initial_entropy=0.2", f"output_dir={folder}",
         "run_name=bench", f"training.max_steps={STEPS}", f"rollout.prompts_per_step={PROMPTS}",
         f"rollout.group_size={GROUP}", f"rollout.max_completion_tokens={TOKENS}", "tracking.wandb.mode=off",
         "optimizer.schedule=constant", "optimizer.warmup_ratio=0", "rewards.plugins=[{name: 'peers:digits'}]"],
    )  # fmt: skip


def count_digits(text: str) -> float:
    """A reward that differs within a group: where all are equal, as they are of completions that never end, gtpo has
    no gradient to compute and TRL computes one of zeros."""
    return float(sum(character.isdigit() for character in text))


def digits(problem: Problem, completion: Completion) -> float:
    return count_digits(completion.text)


def own_steps(*, ends: bool) -> list[float]:
    """CPU seconds of each step of `gtpo train`, its logs included."""
    marks: list[float] = []
    log, set_up_run = Trackers.log, set_up

    def marked_log(*args: Any, **kwargs: Any) -> None:
        log(*args, **kwargs)
        marks.append(time.process_time())

    def prepared(*args: Any, **kwargs: Any) -> Setup:
        setup = set_up_run(*args, **kwargs)
        if not ends:
            setup.policy.eos_token_ids = frozenset()
        return setup

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Trackers, "log", marked_log):
        recipe = recipe_for(folder)
        run_folder = RunFolder(Path(folder) / "bench")
        run_folder.create(recipe)
        with mock.patch.object(loop, "set_up", prepared):
            loop.train(recipe, run_folder, quiet=True)
    return [after - before for before, after in pairwise(marks)]


def trl_steps(*, ends: bool) -> list[float]:
    """CPU seconds of each step of TRL's trainer on the same model, prompts and rewards."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    marks: list[float] = []

    class Mark(TrainerCallback):  # type: ignore[misc]  # ships untyped
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            marks.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_for(folder)
        setup = set_up(recipe, say=lambda _: None)
        assert isinstance(setup.policy, TransformersPolicy)
        tokenizer = setup.policy.tokenizer
        rows = [
            {"prompt": tokenizer.decode(ids[1:]), "gold": problem.gold}
            for problem, ids in setup.data.prompts[: PROMPTS * STEPS]
        ]
        optimizer = recipe.optimizer
        arguments = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False, report_to="none",
            save_strategy="no", logging_steps=10_000, disable_tqdm=True, max_steps=STEPS, seed=1,
            per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP, steps_per_generation=1,
            max_completion_length=TOKENS, temperature=1.0, beta=0.0, loss_type="grpo", num_iterations=1,
            learning_rate=optimizer.learning_rate, weight_decay=optimizer.weight_decay, adam_beta1=optimizer.betas[0],
            adam_beta2=optimizer.betas[1], max_grad_norm=optimizer.max_grad_norm, lr_scheduler_type="constant",
            optim="adamw_torch", dataloader_num_workers=0,
            generation_kwargs=None if ends else {"min_new_tokens": TOKENS},
        )  # fmt: skip

        def right(completions: list[str], gold: list[str], **_: Any) -> list[float]:
            return [accuracy_reward(text, answer) for text, answer in zip(completions, gold, strict=True)]

        def formed(completions: list[str], **_: Any) -> list[float]:
            return [format_reward(text) for text in completions]

        def counted(completions: list[str], **_: Any) -> list[float]:
            return [count_digits(text) for text in completions]

        trainer = GRPOTrainer(
            model=setup.policy.model, processing_class=tokenizer, reward_funcs=[formed, right, counted], args=arguments,
            train_dataset=Dataset.from_list(rows), callbacks=[Mark()],
        )  # fmt: skip
        trainer.train()
    return [after - before for before, after in pairwise(marks)]


def profile(rows: int = 20) -> str:
    """Milliseconds of a step of ours by operation, the costliest first, and of all, with what the profiler adds."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        own_steps(ends=True)
    taken = {event.key: event.self_cpu_time_total / 1000 / STEPS for event in recorded.key_averages()}
    listed = sorted(taken.items(), key=lambda item: -item[1])[:rows]
    return "\n".join(f"{milliseconds:8.2f}  {name}" for name, milliseconds in [*listed, ("all", sum(taken.values()))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-only", action="store_true", help="leave the logits path out")
    parser.add_argument("--profile", action="store_true", help="where the time of a step of ours goes, nothing else")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if arguments.profile:
        torch.set_num_threads(1)
        print(profile())
    elif arguments.step_only:
        torch.set_num_threads(1)
        print(*(whole_step(rounds=arguments.rounds, ends=ends) for ends in (True, False)), sep="\n")
    else:
        print(write(arguments.out, "peers", TITLE, run(rounds=arguments.rounds)))


if __name__ == "__main__":
    main()
