"""The longest step a run can have, tried before the first: memory fails in the first minute, not after 700 steps."""

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
    """Whether `training.stress_step` asks for it here."""
    return policy.device.type == "cuda" if setting == "auto" else setting


def stress_step(
    recipe: Recipe, policy: Policy, sampler: Sampler | None, prompts: Sequence[Prompt], budget: Budget
) -> int:
    """Sample and train, without consequence, on the longest prompt with completions of the greatest length.

    `sampler`: None where the run samples nothing. Leaves weights, gradients and random states as they were; what may
    change is how many rows are worked on at once. Returns the tokens of a row. Raises ModelError or GenerationError
    where even one row does not fit.
    """
    problem, ids = max(prompts, key=lambda prompt: len(prompt[1]))
    rollout, prompts_per_step = recipe.rollout, min(recipe.rollout.prompts_per_step, len(prompts))
    length = min(rollout.max_completion_tokens, policy.max_seq_length - len(ids))
    devices = [policy.device] if policy.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # adapter dropout draws
        if sampler is not None:
            sampler.sync(policy)
            params = SamplingParams(rollout.temperature, max_completion_tokens=length)
            asked = rollout.group_size * prompts_per_step * rollout.steps_per_generation
            sampler.rehearse(len(ids), asked, params)
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
    """The memory that the optimiser takes in its first step, held while the rest is tried."""
    trained = sum(parameter.numel() for parameter in policy.trainable_parameters())
    size = int(STATE_BYTES[name] * trained)
    return torch.empty(size, dtype=torch.uint8, device=policy.device)


def _forward_backward(policy: Policy, rows: Rows) -> None:
    """One micro-batch: the others take as much memory, one after the other, beside the gradients of the first."""
    parameters = list(policy.trainable_parameters())
    try:
        for _ in range(2):  # the second meets the gradients of the first
            logp, _ = policy.token_logprobs(rows)
            logp.sum().backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
    finally:
        for parameter in parameters:
            parameter.grad = None
