"""The same work by other libraries: TRL and Liger. Run: `make bench-peers`.

- Logits path: log-probability, entropy and gradient of the hidden states. Liger has a fused GRPO loss but no entropy,
  so it gets a pass over the logits for that; TRL has a chunked log-probability with entropy (its asynchronous trainer).
- A whole GRPO step: TRL's GRPOTrainer, with a model that it loads itself, in its fastest settings for a CPU, against
  `gtpo train`, with the same prompts, rewards, adapter and optimiser. Both sample exactly as many tokens, but in the
  rows with free ends. The CPU time is that of the process and of its children. On SmolLM2-135M, where it is here
  (`make real-model`): all weights and LoRA, float32 and bfloat16, 48 and 256 tokens; and on the built-in model.
"""

from __future__ import annotations

import argparse
import contextlib
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
from typing import Any, NamedTuple
from unittest import mock

import objective
import psutil  # type: ignore[import-untyped]  # comes with accelerate
import torch
from measure import Figure, interleaved, median_ratio, write
from torch import Tensor

from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy.prepacked import prepack
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.rewards import accuracy_reward, format_reward
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tracking import Trackers
from gtpo_cli.training import loop, stopwatch
from gtpo_cli.training.setup import Setup, set_up
from gtpo_cli.types import Completion, Problem

TITLE = "Other libraries on the same work"
GROUP, RANK = 8, 16


@dataclass(frozen=True)
class Race:
    """What both train. `lora`: an adapter of rank 16, else all weights. `ends`: completions end at end-of-sequence. The
    first of the `steps` of a round does not count."""

    model: str = "builtin:tiny"
    lora: bool = False
    dtype: str = "float32"
    prompts: int = 8
    tokens: int = 48
    ends: bool = False
    steps: int = 6

    def __str__(self) -> str:
        model = "the built-in model" if self.model.startswith("builtin:") else "SmolLM2-135M"
        length = f"at most {self.tokens}" if self.ends else f"exactly {self.tokens}"
        return (
            f"{model}, {'LoRA' if self.lora else 'all weights'}, {self.dtype}, {self.prompts} x {GROUP} completions of "
            f"{length} tokens"
        )


SMOLLM2 = Path(__file__).resolve().parent.parent / "build/smollm2-135m"
BUILTIN = (Race(steps=12), Race(steps=12, ends=True))
REAL = (
    *(
        Race(str(SMOLLM2), lora, dtype, prompts, tokens)
        for prompts, tokens in ((2, 48), (1, 256)) for lora in (False, True) for dtype in ("float32", "bfloat16")
    ),
    Race(str(SMOLLM2), prompts=2, ends=True),
)  # fmt: skip


def races() -> list[Race]:
    if not (SMOLLM2 / "model.safetensors").is_file():
        print("build/smollm2-135m is not here: make real-model makes it; its rows are left out")
        return [*BUILTIN]
    return [*REAL, *BUILTIN]


def run(*, rounds: int = 3) -> list[Figure]:
    """About three hours on one core."""
    torch.set_num_threads(1)
    figures = [figure for race in races() for figure in whole_step(race, rounds=rounds)]
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


class Steps(NamedTuple):
    """CPU seconds of each step that counts, the mean tokens of a completion in them, and the seconds of our phases."""

    seconds: list[float]
    tokens: float
    phases: dict[str, list[float]]


def whole_step(race: Race, *, rounds: int) -> list[Figure]:
    """The ratio of the medians of both sides' steps in a round: its median over rounds, least and most. Of ours also
    the two halves, beside their matrix products with weights."""
    taken: dict[str, list[Steps]] = {"gtpo": [], "TRL": []}
    for turn in range(rounds):
        for name in list(taken) if turn % 2 == 0 else list(taken)[::-1]:
            taken[name].append((trl_steps if name == "TRL" else own_steps)(race))
    medians = {name: [statistics.median(steps.seconds) for steps in each] for name, each in taken.items()}
    tokens = {name: statistics.fmean(steps.tokens for steps in each) for name, each in taken.items()}
    assert race.ends or set(tokens.values()) == {float(race.tokens)}, f"unequal tokens: {tokens}"
    ratios = [ours / theirs for ours, theirs in zip(medians["gtpo"], medians["TRL"], strict=True)]
    note = f"{min(ratios):.3f} to {max(ratios):.3f} in {rounds} rounds; " + ", ".join(
        f"{name} {1000 * statistics.median(medians[name]):,.0f} ms for {tokens[name]:.1f} tokens" for name in taken
    )
    limit = products(race)
    for half, phase in (("sampling", "sample"), ("training", "train")):
        of_half = statistics.median(statistics.median(steps.phases[phase]) for steps in taken["gtpo"])
        note += f", {half} {1000 * of_half:,.0f} ms (its products {1000 * limit[half]:,.0f} ms)"
    name = f"a GRPO step of {race}: CPU time over TRL {version('trl')}"
    print(f"{name}: {statistics.median(ratios):.3f} ({note})", flush=True)
    return [Figure(name, statistics.median(ratios), "", note)]


def cpu_seconds() -> float:
    """CPU seconds of this process and its children so far, also of those that have ended."""
    own = psutil.Process().cpu_times()
    total: float = time.process_time() + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            of_child = child.cpu_times()
            total += of_child.user + of_child.system
    return total


def recipe_for(race: Race, folder: str) -> Recipe:
    return load_recipe(
        "tiny_arithmetic",
        ["objective.name=grpo", "objective.kl_coef=0", "objective.initial_entropy=0.2", f"output_dir={folder}",
         f"model.name={race.model}", f"model.dtype={race.dtype}", "model.load_in_4bit=false",
         f"model.lora={f'{{rank: {RANK}, alpha: {RANK}}}' if race.lora else 'null'}",
         "model.gradient_checkpointing=false",
         "data.max_prompt_tokens=128", "run_name=bench", f"training.max_steps={race.steps}",
         f"rollout.prompts_per_step={race.prompts}", f"rollout.group_size={GROUP}",
         f"rollout.max_completion_tokens={race.tokens}", "tracking.wandb.mode=off", "optimizer.schedule=constant",
         "optimizer.warmup_ratio=0", "rewards.plugins=[{name: 'peers:digits'}]"],
    )  # fmt: skip


def count_digits(text: str) -> float:
    """A reward that differs within a group: where all are equal, as they are of completions that never end, gtpo has
    no gradient to compute and TRL computes one of zeros."""
    return float(sum(character.isdigit() for character in text))


def digits(problem: Problem, completion: Completion) -> float:
    return count_digits(completion.text)


def own_steps(race: Race) -> Steps:
    """From step to step of `gtpo train`, its logs included."""
    marks: list[float] = []
    phases: dict[str, list[float]] = {"sample": [], "train": []}
    lengths: list[float] = []
    log, set_up_run = Trackers.log, set_up

    def marked_log(trackers: Trackers, step: int, metrics: dict[str, float]) -> None:
        log(trackers, step, metrics)
        marks.append(cpu_seconds())
        lengths.append(metrics["completions/length_mean"])
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
    of_phases = {phase: seconds[1:] for phase, seconds in phases.items()}
    return Steps([after - before for before, after in pairwise(marks)], statistics.fmean(lengths[1:]), of_phases)


def trl_steps(race: Race) -> Steps:
    """From step to step of TRL's trainer on the same model, prompts and rewards. TRL loads the model."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    marks: list[float] = []

    class Mark(TrainerCallback):  # type: ignore[misc]  # ships untyped
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            marks.append(cpu_seconds())

    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_for(race, folder)
        job = Parts(recipe).training_job()
        tokenizer = job.model.tokenizer
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
            save_strategy="no", logging_steps=1, disable_tqdm=True, max_steps=race.steps, seed=1,
            per_device_train_batch_size=race.prompts * GROUP, num_generations=GROUP, steps_per_generation=1,
            max_completion_length=race.tokens, temperature=1.0, beta=0.0, loss_type="grpo", num_iterations=1,
            learning_rate=optimizer.learning_rate, weight_decay=optimizer.weight_decay, adam_beta1=optimizer.betas[0],
            adam_beta2=optimizer.betas[1], max_grad_norm=optimizer.max_grad_norm, lr_scheduler_type="constant",
            optim="adamw_torch", dataloader_num_workers=0,
            generation_kwargs=None if race.ends else {"min_new_tokens": race.tokens},
        )  # fmt: skip

        def right(completions: list[str], gold: list[str], **_: Any) -> list[float]:
            return [accuracy_reward(text, answer) for text, answer in zip(completions, gold, strict=True)]

        def formed(completions: list[str], **_: Any) -> list[float]:
            return [format_reward(text) for text in completions]

        def counted(completions: list[str], **_: Any) -> list[float]:
            return [count_digits(text) for text in completions]

        lora = recipe.model.lora
        trainer = GRPOTrainer(
            model=job.model.path, processing_class=tokenizer, reward_funcs=[formed, right, counted], args=arguments,
            train_dataset=Dataset.from_list(rows), callbacks=[Mark()],
            peft_config=None if lora is None else LoraConfig(
                r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.target_modules), task_type="CAUSAL_LM"
            ),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    lengths = [row["completions/mean_length"] for row in trainer.state.log_history if "completions/mean_length" in row]
    return Steps([after - before for before, after in pairwise(marks)], statistics.fmean(lengths[1:]), {})


def products(race: Race) -> dict[str, float]:
    """CPU seconds of a step's matrix products with weights, and nothing else: what no code on top of them can beat.

    Sampling: prompts once, then a token of all completions at a time, with prepacked weights. Training: forward and
    both gradients of each prompt once and of all completions, all of full length; under an adapter without the gradient
    of the weights.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Parts(recipe_for(race, folder)).training_job()
        setup = set_up(job, say=lambda _: None)
    assert isinstance(setup.policy, TransformersPolicy)
    dtype, rows = getattr(torch, race.dtype), race.prompts * GROUP
    prompt = sum(len(ids) for _, ids in job.data.prompts[: race.prompts])
    named = setup.policy.backbone.named_modules()
    linear = (module for name, module in named if type(module) is torch.nn.Linear and "lora" not in name)
    layers = [module.weight.detach().to(dtype) for module in linear]
    head = [setup.policy.lm_head[0].detach().to(dtype)]

    packed = [(weight.shape[1], prepack(weight, dtype=dtype, rows=rows)) for weight in layers + head]

    def forward(tokens: int, number: int) -> None:
        for inputs, product in packed[:number]:
            product(torch.ones(tokens, inputs, dtype=dtype))

    def train(tokens: int, weights: list[Tensor]) -> None:
        for weight in weights:
            x, y = (torch.ones(tokens, size, dtype=dtype) for size in weight.shape[::-1])
            _ = torch.nn.functional.linear(x, weight), y @ weight, None if race.lora else y.T @ x

    def seconds(work: Callable[[], object]) -> float:
        return statistics.median(interleaved({"": work}, rounds=3)[""])

    sampled = race.tokens * seconds(partial(forward, rows, len(packed)))
    trained = seconds(partial(train, prompt + rows * (race.tokens - 1), layers))
    return {
        "sampling": seconds(partial(forward, prompt, len(layers))) + sampled,
        "training": trained + seconds(partial(train, rows * race.tokens, head)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="only the whole steps whose description has these words")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if arguments.only is not None:
        torch.set_num_threads(1)
        for race in (race for race in races() if arguments.only in str(race)):
            whole_step(race, rounds=arguments.rounds)
    else:
        print(write(arguments.out, "peers", TITLE, run(rounds=arguments.rounds)))


if __name__ == "__main__":
    main()
