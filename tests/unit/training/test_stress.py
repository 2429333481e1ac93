"""The stress step: it meets the longest row, lowers what does not fit, and leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from jobs import policy_of, training_job_of

from gtpo_cli.data import PromptOrder
from gtpo_cli.errors import GenerationError, ModelError
from gtpo_cli.job import TrainingJob
from gtpo_cli.policy.packing import training_budget
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.training.trials import stress_step
from gtpo_cli.types import Problem

PROMPTS = [(Problem("a", "1+1", "2"), (1, 4, 9, 80, 9, 5)), (Problem("b", "12-4", "8"), (1, 4, 9, 10, 82, 12, 5))]
DOCUMENT = {
    "model": {"name": "builtin:tiny", "lora": {"rank": 4, "alpha": 4}, "dtype": "float32"},
    "data": {"benchmark": "arithmetic", "max_prompt_tokens": 64},
    "rollout": {"group_size": 6, "prompts_per_step": 2, "max_completion_tokens": 14},
    "tracking": {"wandb": {"mode": "off"}},
    "training": {"max_steps": 3},
    "objective": {"probe": {"num_prompts": 2}},
}


def recipe(*overrides: str) -> Recipe:
    return build_recipe(DOCUMENT, overrides, where="test")


@contextmanager
def memory_for(policy: Any, rows: int, tokens: int = 10**9) -> Iterator[list[tuple[int, int]]]:
    """A machine on which more rows or tokens than these do not fit; yields the shapes that were asked for."""
    shapes: list[tuple[int, int]] = []

    def check(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        shapes.append(tuple(kwargs["input_ids"].shape))
        if kwargs["input_ids"].shape[0] > rows or kwargs["input_ids"].numel() > tokens:
            raise torch.OutOfMemoryError("no room")

    hook = policy.backbone.register_forward_pre_hook(check, with_kwargs=True)
    try:
        yield shapes
    finally:
        hook.remove()


def job_with(asked: Recipe) -> TrainingJob:
    """The job of a recipe, on two prompts."""
    job = training_job_of(asked)
    return replace(job, data=replace(job.data, prompts=PROMPTS, order=PromptOrder(asked, PROMPTS)))


@pytest.mark.parametrize("prompts_per_step", [2, 9])  # there are two prompts: a step cannot have more
def test_rows_are_lowered_for_sampling_and_training_and_nothing_else_changes(prompts_per_step: int) -> None:
    asked = recipe(f"rollout.prompts_per_step={prompts_per_step}")
    policy = policy_of(asked)
    notes: list[str] = []
    sampler = TransformersSampler(policy, warn=notes.append)
    budget = training_budget("auto", longest_row=21, warn=notes.append)
    before = [parameter.detach().clone() for parameter in policy.trainable_parameters()]
    random = torch.get_rng_state()
    with memory_for(policy, 4, tokens=60) as shapes:
        assert stress_step(job_with(asked), policy, sampler, budget) == 7 + 14
    assert budget.limit == 63  # from 252 (12 completions of 7 + 14 tokens), halved twice
    assert shapes[-1] == (1, 7 + 4 * 13)  # four completions on their prompt; the last token predicts nothing
    assert (1, 20) in shapes  # sampling: the longest row but for the token that is chosen last
    assert [note.partition(" from now on ")[2] for note in notes[-1:]] == ["in training (same gradient)"]
    assert torch.equal(torch.get_rng_state(), random)
    after = list(policy.trainable_parameters())
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, after, strict=True))


def test_what_fits_in_no_way_is_an_error_before_the_first_step() -> None:
    asked = recipe()
    policy = policy_of(asked)
    budget = training_budget("auto", longest_row=21, warn=print)
    with memory_for(policy, 0), pytest.raises(GenerationError, match="out of memory while sampling a single"):
        stress_step(job_with(asked), policy, TransformersSampler(policy, warn=print), budget)
    with memory_for(policy, 0), pytest.raises(ModelError, match="single completion in the forward pass"):
        stress_step(job_with(asked).with_recipe(recipe("objective.name=sft")), policy, None, budget)
