"""Training steps on a policy of any size, with a reward that random text earns unevenly."""

from __future__ import annotations

import math
from typing import Any

import torch
from small_steps import whole_step

from gtpo_cli.policy.packing import training_budget
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import build_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.step import StepParts, StepRows
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Completion, Problem

PROMPTS = [(Problem("a", "1+1", "2"), (1, 4, 9, 80, 9, 5)), (Problem("b", "12-4", "8"), (1, 4, 9, 10, 82, 12, 5))]


def even(problem: Problem, completion: Completion) -> float:
    """A user reward: 1 where the sum of the token ids is even."""
    return float(sum(completion.token_ids) % 2 == 0)


def steps_of(policy: Any, *, steps: int, completion: int) -> list[StepRows]:
    """GTPO steps; asserts that the adapter moves, the base does not, and that every number is finite."""
    recipe = build_recipe(
        {
            "model": {"name": "random/weights"},
            "data": {"benchmark": "arithmetic", "max_prompt_tokens": 64},
            "rollout": {"group_size": 8, "prompts_per_step": 2, "max_completion_tokens": completion},
            "rewards": {"plugins": [{"name": "shaped_steps:even", "weight": 1.0}]},
            "optimizer": {"name": "adamw", "learning_rate": 1e-3, "warmup_ratio": 0.0, "betas": [0.9, 0.95]},
        },
        where="test",
    )
    before = {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}
    updater = Updater(policy.trainable_parameters(), recipe.optimizer, total_steps=steps + 1)
    micro = training_budget("auto", longest_row=completion + 10, warn=print)
    results = []
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        parts = StepParts(
            recipe.objective, recipe.rollout, policy, TransformersSampler(policy), scorer, updater, 9.0, micro
        )
        for number in range(steps):
            results.append(whole_step(parts, PROMPTS, seed=number, clock=Stopwatch()))
    for result in results:
        (update,) = result.iterations
        assert update.grad_norm is not None
        assert math.isfinite(update.loss)
        assert 0 < update.grad_norm < math.inf
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, before[name]) == ("lora_" not in name), name
    return results
