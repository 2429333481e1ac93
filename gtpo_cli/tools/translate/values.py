"""More about other tools' settings than `synonyms.py` has: their defaults, words that share a key or only resemble one,
and the conversion of values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.recipe.section import fields_of, kinds_of
from gtpo_cli.recipe.synonyms import LOSS_TYPES

_HUGGING_FACE = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "learning_rate": 5e-5, "num_train_epochs": 3,
    "lr_scheduler_type": "linear", "warmup_ratio": 0.0, "optim": "adamw_torch", "weight_decay": 0.0,
    "max_grad_norm": 1.0, "adam_beta1": 0.9, "adam_beta2": 0.999,
}  # fmt: skip
_GRPO = {"num_generations": 8, "max_completion_length": 512, "loss_type": "dapo"}
# The defaults of each tool (TRL 1.16; Unsloth as of 2025).
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "TRL": _HUGGING_FACE | _GRPO | {"learning_rate": 1e-6, "r": 8, "lora_alpha": 8},
    "Unsloth": _HUGGING_FACE
    | _GRPO
    | {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "weight_decay": 0.01, "warmup_ratio": 0.1,
        "optim": "adamw_8bit", "r": 16, "lora_alpha": 16, "load_in_4bit": True, "max_seq_length": 2048,
    },
}  # fmt: skip
# One name for words with the same meaning if several settings form one key.
ALIKE = {
    "optimizer": "optim", "lora_r": "r", "lora_rank": "r", "max_length": "max_seq_length",
    "vllm_max_model_length": "max_seq_length", "torch_dtype": "dtype",
}  # fmt: skip
_OPTIMIZERS = dict.fromkeys(("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "paged_adamw_32bit"), "adamw")
_OPTIMIZERS |= dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit"), "adamw_8bit") | {"paged_adamw_8bit": "paged_adamw_8bit"}
AVERAGES = {loss: average for average, loss in LOSS_TYPES.items()} | {"bnpo": "token"}
# Words that look like a key of gtpo but have another meaning.
FALSE_FRIENDS = {
    "entropy_coef": "it is a bonus in the loss there; here objective.entropy_coef is subtracted from the advantage",
    "steps_per_generation": "it counts forward passes there; rollout.steps_per_generation counts updates",
    "generation_batch_size": "it counts completions there; rollout.steps_per_generation counts updates",
    "trust_remote_code": "it runs code that comes with the model; write model.trust_remote_code: true if you want that",
    "log_completions": "sample completions are always kept (tracking.log_completions_every)",
    "load_in_8bit": "there are 4 bits or none",
    "top_p": "training samples from the policy itself, at rollout.temperature; evaluation.top_p is for gtpo eval",
    "max_lora_rank": "vLLM is told the adapter's own rank, model.lora.rank",
}  # fmt: skip
# Keys that need more than the other tool's value; they are reported with their meaning in gtpo.
BY_HAND = (
    "training.eval_every", "training.keep_best", "training.micro_batch_size", "objective.clip", "model.lora",
    "rewards.", "evaluation.", "data.",
)  # fmt: skip


class NoCounterpartError(Exception):
    """The reason why a value has no counterpart."""


def plain(value: Any) -> Any:
    return value


def _choice(known: Mapping[Any, Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, (str, bool)) or value not in known:
            raise NoCounterpartError(f"there are {', '.join(dict.fromkeys(map(str, known.values())))}")
        return known[value]

    return read


def _whole(value: Any) -> int | None:
    """Read a positive whole number; -1 and 0 mean `not set` in other tools."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or (value > 0 and value != int(value)):
        raise NoCounterpartError("a whole number is needed here")
    return int(value) if value > 0 else None


def _run_name(value: Any) -> str:
    if not re.fullmatch(r"\w[\w.\-]{0,120}", str(value)):
        raise NoCounterpartError("a run's name has only letters, digits, _ . and -")
    return str(value)


VALUES: Mapping[str, Callable[[Any], Any]] = {
    "model.gradient_checkpointing": lambda value: bool(value),
    "rollout.engine": lambda value: "auto" if value else "transformers",
    "rollout.importance_correction": _choice({True: "truncated", False: "none", "token_truncate": "truncated"}),
    "optimizer.name": _choice(_OPTIMIZERS),
    "optimizer.schedule": _choice(
        {name: name for name in ("cosine", "linear", "constant")} | {"constant_with_warmup": "constant"}
    ),
    "optimizer.max_grad_norm": lambda value: value or 1e6,  # 0 clips nothing
    "training.epochs": _whole,
    "training.max_steps": _whole,
    "training.save_every": _whole,
    "training.keep_last": _whole,
    "data.shuffle": lambda value: bool(value),
    "data.system_prompt": lambda value: str(value),
    "run_name": _run_name,
}


def as_kind(key: str, value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and _is_float(key) else value


def _is_float(key: str) -> bool:
    kinds = kinds_of(fields_of(Recipe)[key].annotation)
    return float in kinds and int not in kinds


def as_number(value: Any) -> Any:
    """Convert text such as 1e-5 to a number, since YAML reads it, without a dot, as text."""
    try:
        return (
            float(value) if isinstance(value, str) and re.fullmatch(r"[\d.]+e[+-]?\d+", value, re.IGNORECASE) else value
        )
    except ValueError:
        return value
