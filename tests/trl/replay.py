"""Train on recorded completions with TRL: `torchrun --nproc_per_node N replay.py OUT RECORD...`, one file a process
and record.

A record holds what gtpo's own loop sampled (see test_trl_parity.py). TRL's own `rollout_func` hands the completions
out: only sampling is replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig

from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy import load_policy
from gtpo_cli.recipe.load import build_recipe
from gtpo_cli.tools.trl.config import grpo_arguments
from gtpo_cli.tools.trl.run import Processes
from gtpo_cli.tools.trl.trainer import GTPOTrainer


class Watched(GTPOTrainer):
    """Notes the advantages that its loss gets, before the rows are shuffled."""

    advantages: list[torch.Tensor]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        self.advantages.append(output["advantages"].clone())
        return output


class Gradients(TrainerCallback):
    def __init__(self) -> None:
        self.of_updates: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters() if p.requires_grad]
        if any(hasattr(gradient, "full_tensor") for gradient in gradients):
            return  # FSDP: a part of each
        self.of_updates.append(torch.cat([gradient.flatten() for gradient in gradients]).clone())


def main(out: str, *records: str) -> None:
    with Processes() as processes:
        for record_file in records:
            replay(Path(record_file), Path(out), processes)


def replay(record_file: Path, out: Path, processes: Processes) -> None:
    record = torch.load(record_file, weights_only=True)
    recipe = build_recipe(record["recipe"], where="record")
    policy = load_policy(Parts(recipe).job())
    policy.model.set_attn_implementation("sdpa")
    batches: list[list[dict[str, Any]]] = record["batches"]
    arguments = grpo_arguments(
        recipe, out / record_file.stem, "transformers", processes=processes.count,
        prompts_per_step=recipe.rollout.prompts_per_step, longest_prompt=32, max_seq_length=policy.max_seq_length,
        steps=len(batches), dtype="float32", extra={},
    )  # fmt: skip
    done = 0

    def recorded(prompts: list[str], trainer: Any) -> dict[str, Any]:
        """The rows of this process of the batch that is next; `prompts` says which problems TRL thinks they are."""
        first = trainer.accelerator.process_index * len(prompts)
        rows = batches[done][first : first + len(prompts)]
        assert prompts == [str(row["problem"]) for row in rows], "TRL deals the rows out in another order"
        return {
            "prompt_ids": [row["prompt_ids"] for row in rows],
            "completion_ids": [row["completion_ids"] for row in rows],
            "logprobs": None,
            "recorded_reward": [row["reward"] for row in rows],
        }

    def reward(recorded_reward: list[float], **_: Any) -> list[float]:
        nonlocal done
        done += 1
        return recorded_reward

    G = recipe.rollout.group_size
    gradients = Gradients()
    trainer = Watched(
        policy.model,
        reward,
        GRPOConfig(**arguments, use_cpu=True),
        train_dataset=Dataset.from_list([{"prompt": str(row["problem"])} for rows in batches for row in rows[::G]]),
        processing_class=policy.tokenizer,
        callbacks=[gradients],
        rollout_func=recorded,
        objective=recipe.objective,
        initial_entropy=record["initial_entropy"],
        mask_truncated=recipe.rollout.mask_truncated,
    )
    trainer.advantages = []
    trainer.train()
    parameters = [parameter.detach() for parameter in policy.trainable_parameters()]
    weights = torch.cat([getattr(p, "full_tensor", lambda p=p: p)().flatten() for p in parameters])  # FSDP: a part each
    stage = getattr(trainer.model_wrapped, "zero_optimization_stage", lambda: None)()
    sharding = [str(trainer.accelerator.distributed_type), type(parameters[0]).__name__, stage]
    torch.save(
        {"advantages": trainer.advantages, "gradients": gradients.of_updates, "weights": weights, "sharding": sharding},
        out / f"{record_file.stem}-{trainer.accelerator.process_index}.pt",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
