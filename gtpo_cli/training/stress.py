"""A trial of the longest possible step before step 1, so that memory runs out at once and not after 700 steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from gtpo_cli.data import Prompt
from gtpo_cli.generation import Sampler, SamplingParams
from gtpo_cli.models import Policy
from gtpo_cli.models.budget import Budget
from gtpo_cli.models.policy import STATE_BYTES
from gtpo_cli.objective import Rows
from gtpo_cli.recipe import Recipe
from gtpo_cli.rollout import collate
from gtpo_cli.types import Completion, Group


def wants_stress(setting: Literal["auto"] | bool, policy: Policy) -> bool:
    """Return whether `training.stress_step` is on for this device."""
    return policy.device.type == "cuda" if setting == "auto" else setting


def stress_step(
    recipe: Recipe, policy: Policy, sampler: Sampler | None, prompts: Sequence[Prompt], budget: Budget
) -> int:
    """Sample and train on the longest prompt with completions of the greatest length, and return the tokens of a row.

    `sampler`: None if the run does not sample. Weights, gradients and random states stay as they were; only the size
    of micro-batches may change. Raises ModelError or GenerationError if not even one row fits.
    """
    problem, ids = max(prompts, key=lambda prompt: len(prompt[1]))
    rollout, prompts_per_step = recipe.rollout, min(recipe.rollout.prompts_per_step, len(prompts))
    length = min(rollout.max_completion_tokens, policy.max_seq_length - len(ids))
    devices = [policy.device] if policy.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # adapter dropout draws
        if sampler is not None:
            sampler.sync(policy)
            params = SamplingParams(rollout.temperature, max_completion_tokens=length)
            completions = rollout.group_size * prompts_per_step * rollout.steps_per_generation
            sampler.rehearse(len(ids), completions, params)
        reserve = _optimizer_state(recipe.optimizer.name, policy)
        completion = Completion((ids[-1],) * length, (0.0,) * length, "length", "")
        group = Group(problem, ids, (completion,) * recipe.completions_per_prompt)
        rows = collate([group] * prompts_per_step, device=policy.device).rows()

        def work(limit: int) -> None:
            first = next(rows.split(limit, unit=budget.unit, packed=policy.packs))
            _forward_backward(policy, rows[first])

        budget.run(work, at_most=rows.size(budget.unit))
        del reserve
    return len(ids) + length


def _optimizer_state(name: str, policy: Policy) -> torch.Tensor:
    """Reserve the memory that the optimiser will take in its first step."""
    trained = sum(parameter.numel() for parameter in policy.trainable_parameters())
    size = int(STATE_BYTES[name] * trained)
    return torch.empty(size, dtype=torch.uint8, device=policy.device)


def _forward_backward(policy: Policy, rows: Rows) -> None:
    """Process one micro-batch twice. Later micro-batches need the same memory plus the accumulated gradients."""
    parameters = list(policy.trainable_parameters())
    try:
        for _ in range(2):  # the second pass runs beside the gradients of the first
            logp, _ = policy.token_logprobs(rows)
            logp.sum().backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
    finally:
        for parameter in parameters:
            parameter.grad = None
