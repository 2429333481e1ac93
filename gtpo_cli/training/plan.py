"""What a recipe would do, without loading a model's weights."""

from __future__ import annotations

from dataclasses import dataclass, field

from gtpo_cli.data import gold_check, load_problems
from gtpo_cli.models import load_tokenizer
from gtpo_cli.recipe import Recipe
from gtpo_cli.training.order import PromptOrder
from gtpo_cli.training.setup import usable_prompts


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Counts of a run; `longest_prompt` in tokens; `completions`: sampled in all, or for SFT references imitated;
    `notes`: what a user should know (dropped rows)."""

    prompts: int
    longest_prompt: int
    steps_per_epoch: int
    total_steps: int
    completions: int
    notes: list[str] = field(default_factory=list)


def plan_steps(recipe: Recipe) -> StepPlan:
    """Load data and tokenizer, count prompts and steps. Raises DataError, ModelError."""
    notes: list[str] = []
    loaded = load_problems(recipe.data, seed=recipe.seed, is_usable=gold_check(recipe.rewards))
    if warning := loaded.warning():
        notes.append(warning)
    tokenizer, max_seq_length = load_tokenizer(recipe)
    prompts = usable_prompts(recipe, loaded.problems, tokenizer, max_seq_length, notes.append)
    order = PromptOrder(recipe, prompts)
    group_size = 1 if recipe.objective.name == "sft" else recipe.rollout.group_size
    return StepPlan(
        prompts=len(prompts),
        longest_prompt=max(len(ids) for _, ids in prompts),
        steps_per_epoch=order.steps_per_epoch,
        total_steps=order.total_steps,
        completions=order.total_prompts * group_size,
        notes=notes,
    )
