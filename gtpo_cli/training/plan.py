"""What a recipe would do, without loading a model's weights."""

from __future__ import annotations

from dataclasses import dataclass, field

from gtpo_cli.data import PromptEncoder, encode_prompts, gold_check, load_problems, summarise_dropped
from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.recipe import Recipe
from gtpo_cli.training.order import PromptOrder


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Counts of a run; `longest_prompt` in tokens; `notes`: what a user should know (dropped rows)."""

    prompts: int
    longest_prompt: int
    steps_per_epoch: int
    total_steps: int
    completions: int
    notes: list[str] = field(default_factory=list)


def plan_steps(recipe: Recipe) -> StepPlan:
    """Load data and tokenizer, count prompts and steps. Raises DataError, ModelError."""
    from gtpo_cli.models.loading import load_tokenizer

    notes: list[str] = []
    loaded = load_problems(recipe.data, seed=recipe.seed, is_usable=gold_check(recipe.rewards))
    if warning := loaded.warning():
        notes.append(warning)
    tokenizer = load_tokenizer(recipe.model, resolve_name(recipe.model.name))
    encoder = PromptEncoder(tokenizer, recipe.data.system_prompt)
    prompts, too_long = encode_prompts(loaded.problems, encoder, max_prompt_tokens=recipe.data.max_prompt_tokens)
    if too_long:
        notes.append(summarise_dropped(too_long))
    order = PromptOrder(recipe, prompts)
    completions = sum(len(order.step(number)) for number in range(1, order.total_steps + 1))
    return StepPlan(
        prompts=len(prompts),
        longest_prompt=max(len(ids) for _, ids in prompts),
        steps_per_epoch=order.steps_per_epoch,
        total_steps=order.total_steps,
        completions=completions * recipe.rollout.group_size,
        notes=notes,
    )
