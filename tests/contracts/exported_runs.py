"""Runs to export: a recipe's policy with its weights moved as training would, saved as a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from jobs import policy_of
from policy_contract import recipe_for

from gtpo_cli.recipe import Recipe
from gtpo_cli.runs.checkpoints import CheckpointState, CheckpointStore, choose_checkpoint
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tools.export.check import LogprobGap
from gtpo_cli.tools.export.exporter import Request, export_run

QUESTIONS = ("3+8-2+5", "9-9+9-1", "2+2+2+2", "9+9+9+9", "1-8-7+4")


def recipe_on(base: Path, *, system_prompt: str | None = None, **model: Any) -> Recipe:
    """A recipe for a small model whose prompts are short: these tokenizers read characters."""
    recipe = recipe_for(base, **model)
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"system_prompt": system_prompt})})


def moved_run(folder: Path, recipe: Recipe, *, scale: float = 0.05, step: int = 3) -> RunFolder:
    """A run with one checkpoint; every trained number was moved by `scale` times a standard normal one."""
    run = RunFolder(folder)
    run.create(recipe)
    policy: Any = policy_of(recipe)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(scale * noise.to(parameter))
    state, store = CheckpointState(step=step, metrics_bytes=0), CheckpointStore(run.checkpoints, keep_last=1)
    store.save(state, policy.save, policy.trainable_parameters(), {})
    return run


class Made(NamedTuple):
    """An export, and where it is."""

    path: Path
    dtype: str
    difference: LogprobGap
    rounding: LogprobGap | None
    notes: tuple[str, ...]


def export(run: RunFolder, format: Any = "merged", **options: Any) -> Made:
    out = options.pop("out", run.export / format)
    done = export_run(Request(run, choose_checkpoint(run), format, out, **options), say=lambda text: None)
    return Made(out, done.dtype, done.difference_from_policy, done.rounding, done.notes)


def greedy_by_transformers(folder: Path, count: int) -> list[list[int]]:
    """Token ids of greedy answers to QUESTIONS, by nothing but transformers and what is in the folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        row = model.generate(**prompt, max_new_tokens=count, do_sample=False)[0]
        answers.append(row[prompt["input_ids"].shape[1] :].tolist())
    return answers
