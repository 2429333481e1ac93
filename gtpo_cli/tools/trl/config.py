"""Translate a recipe into TRL's GRPOConfig. Recipes that TRL cannot express are refused before TRL is imported."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from gtpo_cli.errors import RecipeError
from gtpo_cli.objective.loss import IMPORTANCE_CAP
from gtpo_cli.policy.packing import AUTO_TOKENS
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import Engine, ObjectiveRecipe, RolloutRecipe
from gtpo_cli.recipe.synonyms import LOSS_TYPES, SCALES, keys_for
from gtpo_cli.recipe.yaml_text import parse_yaml

# Keys without a counterpart in TRL: (key, value that is refused, why and what to do).
_WITHOUT_COUNTERPART = (
    ("objective.name", "sft", "GRPOTrainer samples; train SFT with gtpo's own loop"),
    ("model.backend", "unsloth", "Unsloth patches one process; use transformers, or auto"),
    ("training.guard.action", "rollback", "TRL cannot return to earlier weights during a run; use warn or stop"),
)
# Settings that --trl may give: they have no recipe key and do not change the training data or the objective.
_ANYWHERE = {
    "ds3_gather_for_generation", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "pad_to_multiple_of",
    "torch_empty_cache_steps",
}  # fmt: skip
_BY_ENGINE: dict[str, set[str]] = {
    "rollout.engine: transformers": {"cache_implementation"},
    "rollout.engine: vllm": {"vllm_mode", "vllm_model_impl"},
    "rollout.engine: vllm and --trl vllm_mode=server": {
        "vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout", "vllm_group_port",
    },
    "rollout.engine: vllm and --trl vllm_mode=colocate": {"vllm_enable_sleep_mode", "vllm_tensor_parallel_size"},
}  # fmt: skip
MAY_BE_ADDED = _ANYWHERE.union(*_BY_ENGINE.values())
RECIPE_DECIDES = {
    "output_dir", "seed", "report_to", "disable_tqdm", "logging_strategy", "logging_steps", "logging_nan_inf_filter",
    "save_strategy", "save_steps", "save_total_limit", "bf16", "fp16", "use_cpu", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "ddp_find_unused_parameters", "max_steps", "per_device_train_batch_size",
    "gradient_accumulation_steps", "num_generations", "num_iterations", "steps_per_generation", "shuffle_dataset",
    "max_completion_length", "temperature", "top_p", "top_k", "loss_type", "scale_rewards", "beta", "epsilon",
    "epsilon_high", "use_bias_correction_kl",
    "importance_sampling_level", "disable_dropout", "model_init_kwargs", "optim", "learning_rate", "adam_beta1",
    "adam_beta2", "weight_decay", "max_grad_norm", "warmup_steps", "lr_scheduler_type", "use_vllm",
    "vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max",
}  # fmt: skip


def loss_settings(objective: ObjectiveRecipe) -> dict[str, Any]:
    """Return the GRPOConfig settings for the loss of `objective`, given its coefficients c as advantages.

    Raises RecipeError if none of TRL's losses matches.
    """
    rule, advantages = objective.loss.rule, objective.advantages
    problems = []
    if rule not in ("token", "sequence", "weight"):
        problems.append(
            f"objective.loss.rule: {rule}: TRL's trainer runs only token, sequence and weight; use gtpo's own loop"
        )
    if rule == "weight" and objective.average != "token":
        problems.append(
            "objective.loss.rule: weight works in TRL only with average: token (its cispo loss); use that, or gtpo's "
            "own loop"
        )
    if rule == "sequence" and objective.token_weights.rule != "none":
        problems.append(
            "objective.token_weights.rule: with loss.rule: sequence TRL has one coefficient for each completion, not "
            "for each token; use gtpo's own loop, or none"
        )
    if advantages.rule not in ("group", "quantile", "maximum_likelihood"):
        problems.append(
            f"objective.advantages.rule: {advantages.rule} may need more of a completion than its reward, which is all "
            "that TRL's trainer knows; use gtpo's own loop"
        )
    if problems:
        raise RecipeError(problems)
    return {
        "loss_type": "cispo" if rule == "weight" else LOSS_TYPES[objective.average],
        "importance_sampling_level": "sequence" if rule == "sequence" else "token",
        "scale_rewards": SCALES[str(advantages.config.get("scale", "std"))],
        "epsilon": objective.clip.low,
        "epsilon_high": objective.clip.high,
        "num_iterations": objective.num_iterations,
        "beta": objective.kl_coef,
        "use_bias_correction_kl": False,
    }


def check_recipe(recipe: Recipe) -> None:
    """Raise RecipeError with every key whose value has no counterpart in TRL."""
    problems = [
        f"{key}: {refused} has no counterpart with --engine trl: {why}"
        for key, refused, why in _WITHOUT_COUNTERPART
        if attrgetter(key)(recipe) == refused
    ]
    if recipe.training.eval_every is not None:
        problems.append(
            "training.eval_every: has no counterpart with --engine trl: use gtpo eval on the checkpoints, or null"
        )
    if recipe.data.curriculum is not None or recipe.data.rest_after is not None:
        problems.append("data.curriculum, data.rest_after: TRL's trainer has its own order; remove them")
    for key, instead in (("max_num_seqs", ""), ("standby", "--trl vllm_enable_sleep_mode=true, "), ("vllm", "")):
        if getattr(recipe.rollout, key) != getattr(RolloutRecipe(), key):
            problems.append(f"rollout.{key}: TRL starts vLLM without it; remove it, or use {instead}gtpo's own loop")
    if recipe.model.start is not None and recipe.objective.kl_coef:
        problems.append(
            "model.start: with --engine trl the reference of a KL term would be the model without that start; use "
            "objective.kl_coef: 0, or gtpo's own loop"
        )
    K = recipe.rollout.steps_per_generation
    if recipe.training.save_every % K:
        problems.append(
            "training.save_every: TRL's checkpoints do not hold samples for coming steps; with --engine trl use a "
            f"multiple of rollout.steps_per_generation, {K}"
        )
    if recipe.rollout.group_size < 2:
        problems.append("rollout.group_size: TRL needs groups of at least 2")
    if recipe.rollout.importance_correction == "truncated" and choose_engine(recipe) != "vllm":
        problems.append(
            "rollout.importance_correction: truncated needs the sampler's probabilities, which TRL gets only from "
            "vLLM; use rollout.engine: vllm, or none"
        )
    try:
        loss_settings(recipe.objective)
    except RecipeError as error:
        problems += error.problems
    if problems:
        raise RecipeError(problems)


def check_extra(extra: Mapping[str, Any], recipe: Recipe) -> None:
    """Raise RecipeError with every setting of GRPOConfig that --trl may not give with this recipe."""
    problems = []
    if decided := sorted(extra.keys() & RECIPE_DECIDES):
        problems.append(f"--trl {', '.join(decided)}: the recipe decides that; change it there (docs/trl.md)")
        problems += [f"--trl {name}: {key}" for name in decided for key in keys_for(name)]
    for name in sorted(extra.keys() - RECIPE_DECIDES - MAY_BE_ADDED):
        instead = next(iter(keys_for(name)), "GTPOTrainer in a program of your own takes more (docs/trl.md)")
        problems.append(f"--trl {name}: is not for the run of a recipe; {instead}")
    engine = f"rollout.engine: {choose_engine(recipe)}"
    there = {engine, f"{engine} and --trl vllm_mode={extra.get('vllm_mode', 'colocate')}"}
    for needed, names in _BY_ENGINE.items():
        if needed not in there and (ignored := sorted(extra.keys() & names)):
            problems.append(f"--trl {', '.join(ignored)}: would be ignored; it needs {needed}")
    if problems:
        raise RecipeError(problems)


def choose_engine(recipe: Recipe) -> Engine:
    """Return the engine that samples for TRL. auto is vLLM if it is installed and there is a GPU."""
    if recipe.rollout.engine != "auto":
        return recipe.rollout.engine
    import torch

    there = torch.cuda.is_available() and importlib.util.find_spec("vllm") is not None
    return "vllm" if there else "transformers"


def rows_at_a_time(recipe: Recipe, *, processes: int, prompts_per_step: int, longest_row: int) -> tuple[int, int]:
    """Return (completions in one forward of one process, such forwards in a step). Raises RecipeError.

    TRL splits a step into equal numbers of completions, so this number must divide a process's share of the step.
    """
    rows = prompts_per_step * recipe.rollout.group_size
    if rows % processes:
        raise RecipeError(
            f"rollout: {prompts_per_step} prompts x {recipe.rollout.group_size} completions in a step cannot be shared "
            f"evenly by {processes} processes; change rollout.prompts_per_step or rollout.group_size"
        )
    share = rows // processes
    setting = recipe.training.micro_batch_size
    if setting == "auto":
        fit = max(1, AUTO_TOKENS // longest_row)
        size = max(size for size in range(1, share + 1) if share % size == 0 and size <= max(fit, 1))
    elif share % setting and setting < share:
        divisors = ", ".join(str(size) for size in range(1, share + 1) if share % size == 0)
        raise RecipeError(
            f"training.micro_batch_size: TRL splits a step's {share} completions of a process evenly; choose one of "
            f"{divisors}, not {setting}"
        )
    else:
        size = min(setting, share)
    return size, share // size


def grpo_arguments(
    recipe: Recipe,
    output_dir: Path,
    engine: Engine,
    *,
    processes: int,
    prompts_per_step: int,
    longest_prompt: int,
    max_seq_length: int,
    steps: int,
    dtype: str,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the keyword arguments of GRPOConfig.

    Args:
        engine: the engine that samples. processes: their total number. prompts_per_step: as the data allow.
        longest_prompt, max_seq_length: tokens.
        steps: batches of completions in the run; each is `objective.num_iterations` updates.
        dtype: of the model's arithmetic: float32, bfloat16 or float16.
        extra: further settings of GRPOConfig that passed `check_extra`.
    Raises:
        RecipeError: the recipe needs something that TRL cannot do.
    """
    rollout, objective, optimizer, training = recipe.rollout, recipe.objective, recipe.optimizer, recipe.training
    longest = longest_prompt + rollout.max_completion_tokens
    if longest > max_seq_length:
        raise RecipeError(
            f"rollout.max_completion_tokens: the longest prompt ({longest_prompt} tokens) and "
            f"{rollout.max_completion_tokens} more exceed model.max_seq_length, {max_seq_length}, but TRL has one "
            "limit for all completions; lower it, or data.max_prompt_tokens"
        )
    size, pieces = rows_at_a_time(recipe, processes=processes, prompts_per_step=prompts_per_step, longest_row=longest)
    updates = steps * objective.num_iterations
    warmup = math.ceil(optimizer.warmup_ratio * updates)
    arguments = {
        "output_dir": str(output_dir), "seed": recipe.seed, "report_to": "none", "disable_tqdm": True,
        "logging_strategy": "steps", "logging_steps": 1, "logging_nan_inf_filter": False, "save_strategy": "steps",
        "save_steps": training.save_every * objective.num_iterations, "save_total_limit": max(2, training.keep_last),
        "bf16": dtype == "bfloat16", "fp16": dtype == "float16",
        "gradient_checkpointing": recipe.model.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False}, "ddp_find_unused_parameters": False,
        # batches
        "max_steps": updates, "per_device_train_batch_size": size, "gradient_accumulation_steps": pieces,
        "num_generations": rollout.group_size, "shuffle_dataset": False,
        "steps_per_generation": pieces * rollout.steps_per_generation,  # TRL counts forward passes
        # sampling
        "max_completion_length": rollout.max_completion_tokens, "temperature": rollout.temperature,
        "top_p": 1.0, "top_k": 0,
        # the advantages already include conflict, filter, entropy, baseline and scale
        **loss_settings(objective), "disable_dropout": False,
        # update
        "optim": "adamw_torch" if optimizer.name == "adamw" else optimizer.name,
        "learning_rate": optimizer.learning_rate, "adam_beta1": optimizer.betas[0], "adam_beta2": optimizer.betas[1],
        "weight_decay": optimizer.weight_decay, "max_grad_norm": optimizer.max_grad_norm, "warmup_steps": warmup,
        "lr_scheduler_type": "constant_with_warmup" if optimizer.schedule == "constant" else optimizer.schedule,
    }  # fmt: skip
    if engine == "vllm":
        arguments |= {
            "use_vllm": True, "vllm_gpu_memory_utilization": rollout.engine_share,
            "vllm_max_model_length": max_seq_length,
            "vllm_importance_sampling_correction": rollout.importance_correction == "truncated",
            "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": IMPORTANCE_CAP,
        }  # fmt: skip
    if recipe.model.trust_remote_code and objective.kl_coef and recipe.model.lora is None:
        arguments["model_init_kwargs"] = {"trust_remote_code": True}  # for the reference, which TRL loads
    return arguments | dict(extra)


def parse_extra(settings: Sequence[str]) -> dict[str, Any]:
    """Parse settings `name=value`, with the value as YAML. Raises RecipeError."""
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise RecipeError(f"--trl {setting}: write name=value, such as vllm_mode=server")
        try:
            parsed[name] = parse_yaml(value)
        except ValueError as error:
            raise RecipeError(f"--trl {setting}: the value cannot be read ({error})") from error
    return parsed
