"""A training step of gtpo's own loop on a small random model, for engines that must agree with it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from small_models import random_model

from gtpo_cli.data import Prompt
from gtpo_cli.generation.transformers_sampler import TransformersSampler
from gtpo_cli.models.budget import training_budget
from gtpo_cli.models.transformers_policy import TransformersPolicy
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.step import MorePrompts, StepParts, StepPrompts, StepResult, sample_steps, train_step
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Completion, Problem

PROMPTS = [
    (Problem("a", "1+1", "2"), (1, 4, 9, 80, 9, 5)),
    (Problem("b", "12-4", "8"), (1, 4, 9, 10, 82, 12, 5)),
    (Problem("c", "7", "7"), (1, 4, 15, 5)),
]
INITIAL_ENTROPY = 0.5


def recorded_gradients(updater: Updater) -> list[list[torch.Tensor]]:
    """A list that gets the gradients of each update from now on, clipped: afterwards they are freed."""
    recorded: list[list[torch.Tensor]] = []
    groups = updater.optimizer.param_groups

    def record(*_: object) -> None:
        recorded.append([p.grad.clone() for group in groups for p in group["params"]])

    updater.optimizer.register_step_pre_hook(record)
    return recorded


def whole_step(
    parts: StepParts,
    prompts: Sequence[Prompt],
    *,
    seed: int,
    clock: Stopwatch,
    more: MorePrompts | None = None,
) -> StepResult:
    """A generation of one step, and the step."""
    (samples,) = sample_steps(parts, [StepPrompts(prompts, seed, more)], clock=clock)
    return train_step(parts, samples, clock=clock)


def letters(problem: Problem, completion: Completion) -> float:
    """A user reward: how many of the first four characters are letters; so groups have ties, and shared tokens."""
    return float(sum(character.isalpha() for character in completion.text[:4]) // 2)


def step_recipe(overrides: Sequence[str] = ()) -> Recipe:
    """A recipe for `own_step`."""
    document = {
        "model": {"name": "builtin:tiny"},
        "data": {"benchmark": "arithmetic", "max_prompt_tokens": 64},
        "rollout": {"group_size": 6, "prompts_per_step": 3, "max_completion_tokens": 14},
        "rewards": {"plugins": [{"name": "small_steps:letters", "weight": 1.0}]},
        "objective": {"initial_entropy": INITIAL_ENTROPY},
        "training": {"max_steps": 10},
    }
    return build_recipe(document, overrides, where="test")


def own_step(recipe: Recipe) -> StepResult:
    """One step: completions of different lengths, entropies on both sides of 2.2 nats, conflicts."""
    model, tokenizer = random_model(initializer_range=0.35)
    policy = TransformersPolicy(model, tokenizer, temperature=recipe.rollout.temperature, max_seq_length=256)
    policy.eos_token_ids = frozenset({2, *range(60, 80)})
    updater = Updater(policy.trainable_parameters(), recipe.optimizer, total_steps=10)
    size = training_budget(4, longest_row=64, warn=print)
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        sampler = TransformersSampler(policy)
        parts = StepParts(recipe, policy, sampler, scorer, updater, INITIAL_ENTROPY, size)
        return whole_step(parts, PROMPTS, seed=3, clock=Stopwatch())
