"""From a recipe to the command that starts verl with it (docs/verl.md). Torch-free, and without verl."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gtpo_cli.data.prompts import TEMPLATE_DATE
from gtpo_cli.errors import RecipeError
from gtpo_cli.integrations.verl_rules import ACTOR, OMIT, ROLLOUT, RULES, Plan
from gtpo_cli.recipe import Recipe

EXTERNAL_MODULES = "VERL_USE_EXTERNAL_MODULES"
PLUGIN_MODULE = "gtpo_cli.integrations.verl"
MAIN = "verl.trainer.main_ppo"

# What makes verl's PPO program GTPO, whatever the recipe.
FIXED: dict[str, Any] = {
    "trainer.v1.trainer_mode": "gtpo",
    "algorithm.adv_estimator": "grpo",  # no critic; its advantages are overwritten
    "algorithm.use_kl_in_reward": False,
    f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",  # 1/G sum_i 1/|o_i| sum_t
    f"{ACTOR}.clip_ratio_c": 1e9,  # Eq. 2 has no second clip; verl's ratio is at most e^20
    f"{ACTOR}.entropy_coeff": 0,
    f"{ACTOR}.entropy_from_logits_with_chunking": True,  # H in float32; without, in the type of the logits
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    "+data.apply_chat_template_kwargs.date_string": TEMPLATE_DATE,
    "trainer.val_before_train": False,
    "trainer.test_freq": -1,
    "trainer.nnodes": 1,
}


def check(plan: Plan) -> None:
    """Raise RecipeError that names, all at once, what of the recipe verl has no counterpart for, with the remedy."""
    recipe, rollout = plan.recipe, plan.recipe.rollout
    problems = [problem for rule in RULES if rule.refuses and (problem := rule.refuses(recipe))]
    if plan.max_prompt_tokens < 1:
        problems.append(
            f"rollout.max_completion_tokens: {rollout.max_completion_tokens} leaves a context of {plan.context} tokens "
            "no room for a prompt; lower it"
        )
    rows = rollout.group_size * rollout.prompts_per_step
    if rows % plan.gpus:
        problems.append(
            f"rollout.prompts_per_step: {rows} completions of a step cannot be shared by {plan.gpus} GPUs equally; "
            "change it, rollout.group_size, or --gpus"
        )
    if problems:
        raise RecipeError(problems)


def overrides(plan: Plan) -> list[str]:
    """verl's hydra overrides of a plan that `check` let through: `key=value`, not quoted for a shell."""
    chosen: dict[str, Any] = dict(FIXED)
    for rule in RULES:
        chosen |= {key: value for key, make in rule.sets.items() if (value := make(plan)) is not OMIT}
    files = str(plan.data_file)
    chosen |= {
        "data.train_files": files,
        "data.val_files": files,
    }  # it reads both, tests or not
    chosen |= {"trainer.n_gpus_per_node": plan.gpus, "+gtpo.recipe": str(plan.recipe_file)}
    for name, text in environment(plan.recipe).items():  # for Ray's processes on other machines
        chosen[f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}"] = text
    return [f"{key}={hydra_text(value)}" for key, value in chosen.items()]


def environment(recipe: Recipe) -> dict[str, str]:
    """Variables that verl's processes need: the module that registers our trainer, and wandb's settings."""
    wandb = recipe.tracking.wandb
    variables = {EXTERNAL_MODULES: PLUGIN_MODULE}
    if wandb.mode == "off":
        return variables
    variables["WANDB_MODE"] = "online" if wandb.mode == "online" else "offline"
    if wandb.entity:
        variables["WANDB_ENTITY"] = wandb.entity
    if wandb.tags:
        variables["WANDB_TAGS"] = ",".join(wandb.tags)
    return variables


def command(plan: Plan) -> str:
    """The command for a shell, one override a line."""
    variables = [f"{name}={shlex.quote(text)}" for name, text in environment(plan.recipe).items()]
    lines = [f"{' '.join(variables)} python -m {MAIN}", *map(shlex.quote, overrides(plan))]
    return " \\\n  ".join(lines)


def hydra_text(value: Any) -> str:
    """A value in hydra's override grammar, so that it is read back as it is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(hydra_text, value))}]"
    if isinstance(value, Mapping):
        raise TypeError("set the keys of a mapping one by one")
    text = str(value)
    if re.fullmatch(r"[A-Za-z_/][\w/.:-]*", text) and text.lower() not in ("null", "true", "false", "nan", "inf"):
        return text
    return '"' + re.sub(r'(\\*)"', r'\1\1\\"', re.sub(r"(\\+)$", r"\1\1", text)) + '"'


def table() -> str:
    """The mapping as a Markdown table, for docs/verl.md."""
    return "\n".join(["| recipe | verl | |", "|---|---|---|", *_table_rows()]) + "\n"


def _table_rows() -> Iterator[str]:
    for rule in RULES:
        yield f"| `{rule.key}` | {_code(rule.sets)} | {rule.note} |"
    always = [f"`{key}={hydra_text(value)}`" for key, value in FIXED.items()]
    yield f"| always | {'<br>'.join(always)} | |"


def _code(keys: Iterable[str]) -> str:
    return "<br>".join(f"`{key.lstrip('+')}`" for key in keys)
