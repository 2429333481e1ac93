"""From a recipe to everything a run needs: data, prompts, policy, sampler. Shared by training and the entropy probe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gtpo_cli.data import PromptEncoder, encode_prompts, gold_check, load_problems, summarise_dropped
from gtpo_cli.errors import DataError
from gtpo_cli.hub import cached_snapshot
from gtpo_cli.models import Policy, choose_engines, load_policy
from gtpo_cli.models.engines import why_auto_is_slow
from gtpo_cli.models.threads import set_threads
from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.recipe import Recipe
from gtpo_cli.rollout import Prompt
from gtpo_cli.training.sft import drop_long_references
from gtpo_cli.types import Problem

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """A loaded policy and the usable prompts, with facts for environment.json."""

    policy: Policy
    prompts: list[Prompt]
    facts: dict[str, Any]


def prepare(recipe: Recipe, *, say: Say, samples: bool = True) -> Setup:
    """Load data and model and encode the prompts; `say` gets one line for each thing a user should know.

    `samples`: whether anything will be sampled; where not, no engine is started.
    Raises DataError, ModelError, RecipeError.
    """
    loaded = load_problems(recipe.data, seed=recipe.seed, is_usable=gold_check(recipe.rewards))
    if warning := loaded.warning():
        say(warning)
    engines = choose_engines(recipe)
    say(f"{len(loaded.problems)} problems; loading {recipe.model.name} ({engines})")
    if reason := why_auto_is_slow(recipe):
        say(f"Unsloth and vLLM, which are faster, are not used: {reason}")
    policy = load_policy(recipe, with_engine=samples)
    trainable = sum(parameter.numel() for parameter in policy.trainable_parameters())
    set_threads(recipe, policy)
    if policy.max_seq_length < recipe.model.max_seq_length:
        say(f"the model's context is {policy.max_seq_length} tokens, so model.max_seq_length is that")
    prompts = usable_prompts(recipe, loaded.problems, policy.tokenizer, policy.max_seq_length, say)
    facts = {
        "model": recipe.model.name,
        "model_commit": _commit(recipe),
        "trainable_parameters": trainable,
        "backend": engines.backend,
        "engine": engines.engine if samples else None,
        "device": str(policy.device),
        "threads": torch.get_num_threads(),
        "problems": len(prompts),
        "problems_dropped": len(loaded.dropped) + len(loaded.problems) - len(prompts),
    }
    return Setup(policy, prompts, facts)


def usable_prompts(
    recipe: Recipe, problems: Sequence[Problem], tokenizer: Any, max_seq_length: int, say: Say
) -> list[Prompt]:
    """The problems that fit the context, encoded; for SFT those whose reference fits too.

    Raises DataError, ModelError.
    """
    encoder = PromptEncoder(tokenizer, recipe.data.system_prompt)
    if encoder.uses_plain_format:
        say("the tokenizer has no chat template: prompts are plain text ('Question: ...' then 'Answer:')")
    longest = min(recipe.data.max_prompt_tokens, max_seq_length - 1)
    prompts, too_long = encode_prompts(problems, encoder, max_prompt_tokens=longest)
    if too_long:
        say(summarise_dropped(too_long))
    if recipe.objective.name == "sft":
        prompts, unfit = drop_long_references(
            prompts,
            tokenizer,
            max_completion_tokens=recipe.rollout.max_completion_tokens,
            max_seq_length=max_seq_length,
            tags=recipe.rewards.format.tags,
        )
        if not prompts:
            raise DataError(f"no problem is left to imitate: {summarise_dropped(unfit)}")
        if unfit:
            say(summarise_dropped(unfit))
    return prompts


def _commit(recipe: Recipe) -> str | None:
    """What the model's name (and revision) meant on the hub when it was fetched; None for a folder."""
    path = resolve_name(recipe.model.name)
    snapshot = None if Path(path).is_dir() else cached_snapshot(path, recipe.model.revision)
    return snapshot.name if snapshot is not None else None


def longest_row(prompts: list[Prompt], recipe: Recipe, policy: Policy) -> int:
    """Most tokens of prompt and completion together that the run can see."""
    longest_prompt = max(len(ids) for _, ids in prompts)
    return min(policy.max_seq_length, longest_prompt + recipe.rollout.max_completion_tokens)
