"""Whole GRPO steps of one trainer on the card.

python grpo_peers.py gtpo|TRL|Unsloth|Unsloth-unfolded --model FOLDER --steps N --out FILE

FILE is JSON. All have the same model (16 bits), adapter, prompts (word problems), rewards, lengths and optimiser. TRL
samples by vLLM in its own process's memory (colocate), Unsloth and gtpo by Unsloth's shared engine.

Unsloth is as it comes: for 16-bit weights it adds the adapter to the weights before it samples, and takes it off again
("folds"), so that vLLM has less to compute. gtpo leaves the weights that train alone, and so does Unsloth-unfolded,
which is Unsloth with UNSLOTH_VLLM_MERGED_ROLLOUT=0. FILE says how the peer sampled.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

PROMPT = 192  # tokens, at most
SHARE = 0.3  # of the card's memory, for vLLM
FOLDS = {"Unsloth": "auto", "Unsloth-unfolded": "0"}  # "auto" is Unsloth's default
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=("gtpo", "TRL", "Unsloth", "Unsloth-unfolded"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=8, help="of a step")
    parser.add_argument("--group", type=int, default=8, help="completions of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of a completion, at most")
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    if arguments.peer in FOLDS:
        os.environ["UNSLOTH_VLLM_MERGED_ROLLOUT"] = FOLDS[arguments.peer]
        import unsloth  # noqa: F401  before transformers, PEFT and TRL, which it changes
    import torch

    least_free = [torch.cuda.mem_get_info()[0]]
    threading.Thread(target=_look_at_memory, args=(least_free,), daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        steps = own_steps if arguments.peer == "gtpo" else trl_steps
        seconds, tokens = steps(arguments, folder)
    counted = seconds[1:] or seconds
    found = {
        "samples with": sampled_with(arguments.peer),
        "seconds a step": round(statistics.median(counted), 3),
        "tokens a second": round(tokens / statistics.median(counted)),
        "peak GiB of torch": round(torch.cuda.max_memory_allocated() / 2**30, 2),  # without what vLLM allocates itself
        "peak GiB of the card": round((torch.cuda.mem_get_info()[1] - least_free[0]) / 2**30, 2),
    }
    arguments.out.write_text(json.dumps(found))


def sampled_with(peer: str) -> str:
    if peer == "TRL":
        return "merged weights, copied to vLLM at each step"
    from unsloth_zoo.vllm_utils import _MERGED_ROLLOUT_STATS

    folds = _MERGED_ROLLOUT_STATS["folds"]
    return f"the adapter folded into the weights, {folds} times" if folds else "the adapter beside the weights"


def _look_at_memory(least_free: list[int]) -> None:
    import torch

    while True:
        least_free[0] = min(least_free[0], torch.cuda.mem_get_info()[0])
        time.sleep(0.1)


def recipe_for(arguments: argparse.Namespace, folder: str) -> Any:
    from gtpo_cli.recipe import load_recipe

    return load_recipe(
        "smollm135m_words",
        [f"model.name={arguments.model}", f"model.dtype={arguments.dtype}", "model.load_in_4bit=false",
         "model.backend=unsloth", "rollout.engine=vllm", f"rollout.gpu_memory_utilization={SHARE}",
         f"rollout.group_size={arguments.group}", f"rollout.prompts_per_step={arguments.prompts}",
         f"rollout.max_completion_tokens={arguments.tokens}", f"data.max_prompt_tokens={PROMPT}",
         f"evaluation.max_completion_tokens={arguments.tokens}",
         f"model.max_seq_length={PROMPT + arguments.tokens}", "objective.name=grpo", "objective.entropy_coef=0",
         "objective.initial_entropy=1", f"training.max_steps={arguments.steps}", f"output_dir={folder}",
         "run_name=bench", "optimizer.schedule=constant", "optimizer.warmup_ratio=0", "optimizer.name=adamw"],
    )  # fmt: skip


def own_steps(arguments: argparse.Namespace, folder: str) -> tuple[list[float], float]:
    from gtpo_cli.machine.resolve import Parts
    from gtpo_cli.runs.folder import RunFolder
    from gtpo_cli.training import loop

    recipe = recipe_for(arguments, folder)
    run = RunFolder(Path(folder) / "bench")
    run.create(recipe)
    loop.train(Parts(recipe).training_job(), run, quiet=True, say=lambda text: print(text, file=sys.stderr))
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    tokens = statistics.median(arguments.group * arguments.prompts * row["completions/length_mean"] for row in rows)
    return [row["time/step"] for row in rows], tokens


def trl_steps(arguments: argparse.Namespace, folder: str) -> tuple[list[float], float]:
    """By TRL's GRPOTrainer, which Unsloth has replaced by its own where that was imported."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from gtpo_cli.data import PromptEncoder, prepare
    from gtpo_cli.policy.loading import read_model
    from gtpo_cli.rewards import accuracy_reward, format_reward

    recipe = recipe_for(arguments, folder)
    model = read_model(recipe.model)
    tokenizer = model.tokenizer
    encoder = PromptEncoder(tokenizer, recipe.data.system_prompt)
    prompts = prepare(recipe, encoder, model.context).prompts[: arguments.prompts * arguments.steps]
    rows = [{"prompt": tokenizer.decode(ids), "gold": problem.gold} for problem, ids in prompts]
    marks = [time.perf_counter()]

    class Mark(TrainerCallback):  # type: ignore[misc]  # ships untyped
        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.append(time.perf_counter())

    def right(completions: list[str], gold: list[str], **_: Any) -> list[float]:
        return [accuracy_reward(text, answer) for text, answer in zip(completions, gold, strict=True)]

    def formed(completions: list[str], **_: Any) -> list[float]:
        return [format_reward(text) for text in completions]

    optimizer = recipe.optimizer
    settings = GRPOConfig(
        output_dir=folder, bf16=arguments.dtype == "bfloat16", fp16=arguments.dtype == "float16", report_to="none",
        save_strategy="no", logging_steps=1, disable_tqdm=True, max_steps=arguments.steps, seed=1,
        per_device_train_batch_size=arguments.prompts * arguments.group, num_generations=arguments.group,
        max_completion_length=arguments.tokens, temperature=1.0, beta=0.0, loss_type="grpo", num_iterations=1,
        learning_rate=optimizer.learning_rate, weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.betas[0], adam_beta2=optimizer.betas[1],
        max_grad_norm=optimizer.max_grad_norm, lr_scheduler_type="constant", optim="adamw_torch", use_vllm=True,
        gradient_checkpointing=False, gradient_accumulation_steps=1,  # Unsloth's own default is 2
        **({} if arguments.peer in FOLDS else {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": SHARE}),
    )  # fmt: skip
    model = unsloths_model(arguments, recipe) if arguments.peer in FOLDS else plain_model(arguments, recipe)
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=[formed, right], args=settings,
        train_dataset=Dataset.from_list(rows), callbacks=[Mark()],
    )  # fmt: skip
    trainer.train()
    lengths = [row["completions/mean_length"] for row in trainer.state.log_history if "completions/mean_length" in row]
    tokens = arguments.group * arguments.prompts * statistics.median(lengths)
    return [after - before for before, after in pairwise(marks)], tokens


def plain_model(arguments: argparse.Namespace, recipe: Any) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype)).to("cuda")
    lora = recipe.model.lora
    return get_peft_model(
        model, LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=TARGETS, task_type="CAUSAL_LM")
    )


def unsloths_model(arguments: argparse.Namespace, recipe: Any) -> Any:
    import torch
    from unsloth import FastLanguageModel

    lora = recipe.model.lora
    model, _ = FastLanguageModel.from_pretrained(
        str(arguments.model), max_seq_length=recipe.model.max_seq_length, dtype=getattr(torch, arguments.dtype),
        load_in_4bit=False, fast_inference=True, gpu_memory_utilization=SHARE, max_lora_rank=lora.rank,
    )  # fmt: skip
    return FastLanguageModel.get_peft_model(
        model, r=lora.rank, lora_alpha=lora.alpha, target_modules=TARGETS, use_gradient_checkpointing=False
    )


if __name__ == "__main__":
    main()
