"""The same work by other libraries: TRL and Liger. Run: `make bench-peers`.

- Logits path: log-probability, entropy and gradient of the hidden states. Liger has a fused GRPO loss but no entropy,
  so it gets a pass over the logits for that; TRL has a chunked log-probability with entropy (its asynchronous trainer).
- A whole GRPO step: TRL's GRPOTrainer in its fastest settings for a CPU against ours, with the same prompts, rewards
  and optimiser. On SmolLM2-135M, where it is here (`make real-model`), in float32 and bfloat16; on the built-in model
  with completions that end where they end, and with all of one length.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import objective
import torch
from measure import Figure, interleaved, median_ratio, write
from torch import Tensor

from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.rewards import accuracy_reward, format_reward
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tracking import Trackers
from gtpo_cli.training import loop, stopwatch
from gtpo_cli.training.setup import Setup, set_up
from gtpo_cli.types import Completion, Problem

TITLE = "Other libraries on the same work"
GROUP, TOKENS = 8, 48


@dataclass(frozen=True)
class Race:
    """What both train, all weights of it: `ends`: completions end at end-of-sequence; the first `warm` of the `steps`
    of a round do not count."""

    words: str
    model: str = "builtin:tiny"
    dtype: str = "float32"
    prompts: int = 8
    ends: bool = True
    steps: int = 10
    warm: int = 3


SMOLLM2 = Path(__file__).resolve().parent.parent / "build/smollm2-135m"
BUILTIN = (Race("the built-in model"), Race("the built-in model", ends=False))
REAL = tuple(
    Race(f"SmolLM2-135M, {dtype}", model=str(SMOLLM2), dtype=dtype, prompts=4, steps=4, warm=2)
    for dtype in ("float32", "bfloat16")
)


def races() -> list[Race]:
    if not (SMOLLM2 / "model.safetensors").is_file():
        print("build/smollm2-135m is not here: make real-model makes it; its rows are left out")
        return [*BUILTIN]
    return [*REAL, *BUILTIN]


def run(*, rounds: int = 5) -> list[Figure]:
    """About 45 minutes on one core."""
    torch.set_num_threads(1)
    figures = [whole_step(race, rounds=rounds) for race in races()]
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


def whole_step(race: Race, *, rounds: int) -> Figure:
    """Median over rounds of the ratio of a step's median CPU time; of ours also the two halves, beside their matrix
    products."""
    taken: dict[str, list[float]] = {"gtpo": [], "TRL": []}
    halves: dict[str, list[float]] = {"sampling": [], "training": []}
    for turn in range(rounds):
        for name in list(taken) if turn % 2 == 0 else list(taken)[::-1]:
            if name == "TRL":
                seconds = trl_steps(race)
            else:
                seconds, of_phase = own_steps(race)
                for half, phase in (("sampling", "sample"), ("training", "train")):
                    halves[half].append(statistics.median(of_phase[phase][race.warm :]))
            taken[name].append(statistics.median(seconds[race.warm - 1 :]))
    note = ", ".join(f"{name} {1000 * statistics.median(seconds):,.0f} ms" for name, seconds in taken.items())
    limit = products(race)
    for half, seconds in halves.items():
        note += f", {half} {1000 * statistics.median(seconds):,.0f} ms (its products {1000 * limit[half]:,.0f} ms)"
    length = f"at most {TOKENS}" if race.ends else f"exactly {TOKENS}"
    return Figure(
        f"a GRPO step of {race.words}, {race.prompts} prompts x {GROUP} completions of {length} tokens: CPU time over "
        f"TRL {version('trl')}", median_ratio(taken, "gtpo", "TRL"), "", note,
    )  # fmt: skip


def recipe_for(race: Race, folder: str) -> Recipe:
    return load_recipe(
        "tiny_arithmetic",
        ["objective.name=grpo", "objective.kl_coef=0", "objective.initial_entropy=0.2", f"output_dir={folder}",
         f"model.name={race.model}", f"model.dtype={race.dtype}", "model.load_in_4bit=false", "model.lora=null",
         "model.gradient_checkpointing=false",
         "data.max_prompt_tokens=128", "run_name=bench", f"training.max_steps={race.steps}",
         f"rollout.prompts_per_step={race.prompts}", f"rollout.group_size={GROUP}",
         f"rollout.max_completion_tokens={TOKENS}", "tracking.wandb.mode=off", "optimizer.schedule=constant",
         "optimizer.warmup_ratio=0", "rewards.plugins=[{name: 'peers:digits'}]"],
    )  # fmt: skip


def count_digits(text: str) -> float:
    """A reward that differs within a group: where all are equal, as they are of completions that never end, gtpo has
    no gradient to compute and TRL computes one of zeros."""
    return float(sum(character.isdigit() for character in text))


def digits(problem: Problem, completion: Completion) -> float:
    return count_digits(completion.text)


def own_steps(race: Race) -> tuple[list[float], dict[str, list[float]]]:
    """CPU seconds from step to step of `gtpo train`, its logs included; and those of each step's phases."""
    marks: list[float] = []
    phases: dict[str, list[float]] = {"sample": [], "train": []}
    log, set_up_run = Trackers.log, set_up

    def marked_log(trackers: Trackers, step: int, metrics: dict[str, float]) -> None:
        log(trackers, step, metrics)
        marks.append(time.process_time())
        for phase, seconds in phases.items():
            seconds.append(metrics[f"time/{phase}"])

    def prepared(*args: Any, **kwargs: Any) -> Setup:
        setup = set_up_run(*args, **kwargs)
        if not race.ends:
            setup.policy.eos_token_ids = frozenset()
        return setup

    by_cpu = SimpleNamespace(perf_counter=time.process_time)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(Trackers, "log", marked_log),
        mock.patch.object(stopwatch, "time", by_cpu),
    ):
        recipe = recipe_for(race, folder)
        run_folder = RunFolder(Path(folder) / "bench")
        run_folder.create(recipe)
        with mock.patch.object(loop, "set_up", prepared):
            loop.train(Parts(recipe).training_job(), run_folder, quiet=True)
    return [after - before for before, after in pairwise(marks)], phases


def trl_steps(race: Race) -> list[float]:
    """CPU seconds of each step of TRL's trainer on the same model, prompts and rewards."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    marks: list[float] = []

    class Mark(TrainerCallback):  # type: ignore[misc]  # ships untyped
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            marks.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_for(race, folder)
        job = Parts(recipe).training_job()
        setup = set_up(job, say=lambda _: None)
        assert isinstance(setup.policy, TransformersPolicy)
        tokenizer = setup.policy.tokenizer
        rows = []
        for problem, ids in job.data.prompts[: race.prompts * race.steps]:
            text = tokenizer.decode(ids)
            if tokenizer(text).input_ids != list(ids):  # the tokenizer adds the first token itself
                text = tokenizer.decode(ids[1:])
            assert tokenizer(text).input_ids == list(ids), "the same prompts for both"
            rows.append({"prompt": text, "gold": problem.gold})
        optimizer = recipe.optimizer
        arguments = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=race.dtype == "bfloat16", fp16=False,
            gradient_checkpointing=False, report_to="none",
            save_strategy="no", logging_steps=10_000, disable_tqdm=True, max_steps=race.steps, seed=1,
            per_device_train_batch_size=race.prompts * GROUP, num_generations=GROUP, steps_per_generation=1,
            max_completion_length=TOKENS, temperature=1.0, beta=0.0, loss_type="grpo", num_iterations=1,
            learning_rate=optimizer.learning_rate, weight_decay=optimizer.weight_decay, adam_beta1=optimizer.betas[0],
            adam_beta2=optimizer.betas[1], max_grad_norm=optimizer.max_grad_norm, lr_scheduler_type="constant",
            optim="adamw_torch", dataloader_num_workers=0,
            generation_kwargs=None if race.ends else {"min_new_tokens": TOKENS},
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


def products(race: Race) -> dict[str, float]:
    """CPU seconds of a step's matrix products with weights, and nothing else: what no code on top of them can beat.

    Sampling: prompts once, then a token of all completions at a time. Training: forward and both gradients of each
    prompt once and of all completions, all of full length.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Parts(recipe_for(race, folder)).training_job()
        setup = set_up(job, say=lambda _: None)
    assert isinstance(setup.policy, TransformersPolicy)
    dtype, rows = getattr(torch, race.dtype), race.prompts * GROUP
    prompt = sum(len(ids) for _, ids in job.data.prompts[: race.prompts])
    linear = (module for module in setup.policy.backbone.modules() if isinstance(module, torch.nn.Linear))
    layers = [module.weight.detach().to(dtype) for module in linear]
    head = [setup.policy.lm_head[0].detach().to(dtype)]

    def forward(tokens: int, weights: list[Tensor]) -> None:
        for weight in weights:
            torch.nn.functional.linear(torch.ones(tokens, weight.shape[1], dtype=dtype), weight)

    def train(tokens: int, weights: list[Tensor]) -> None:
        for weight in weights:
            x, y = (torch.ones(tokens, size, dtype=dtype) for size in weight.shape[::-1])
            _ = torch.nn.functional.linear(x, weight), y @ weight, y.T @ x

    def seconds(work: Callable[[], object]) -> float:
        return statistics.median(interleaved({"": work}, rounds=3)[""])

    return {
        "sampling": seconds(partial(forward, prompt, layers)) + TOKENS * seconds(partial(forward, rows, layers + head)),
        "training": seconds(partial(train, prompt + rows * (TOKENS - 1), layers))
        + seconds(partial(train, rows * TOKENS, head)),
    }


def profile(race: Race, rows: int = 20) -> str:
    """Milliseconds of a step of ours by operation, the costliest first, and of all, with what the profiler adds."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        own_steps(race)
    taken = {event.key: event.self_cpu_time_total / 1000 / race.steps for event in recorded.key_averages()}
    listed = sorted(taken.items(), key=lambda item: -item[1])[:rows]
    return "\n".join(f"{milliseconds:8.2f}  {name}" for name, milliseconds in [*listed, ("all", sum(taken.values()))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-only", action="store_true", help="leave the logits path out")
    parser.add_argument("--products", action="store_true", help="seconds of a step's matrix products, nothing else")
    parser.add_argument("--profile", action="store_true", help="where the time of a step of ours goes, nothing else")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if arguments.profile:  # of the first race
        torch.set_num_threads(1)
        print(profile(races()[0]))
    elif arguments.step_only:
        torch.set_num_threads(1)
        for race in races():
            print(whole_step(race, rounds=arguments.rounds), flush=True)
    elif arguments.products:
        torch.set_num_threads(1)
        for race in races():
            print(race.words, products(race), flush=True)
    else:
        print(write(arguments.out, "peers", TITLE, run(rounds=arguments.rounds)))


if __name__ == "__main__":
    main()
