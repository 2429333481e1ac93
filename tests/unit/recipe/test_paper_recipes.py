"""The paper's recipes: every value of Listing 1, the switches of each baseline and ablation, and `extends`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe, load_recipe, shipped_recipes

ROOT = Path(__file__).resolve().parents[3]
MAIN = ["llama8b_gsm8k", "llama8b_math", "qwen3b_gsm8k", "qwen3b_math"]

# Listing 1 and Section 6 of the paper (docs/objective.md says where the specification of this project has them).
LISTING_1 = {
    "optimizer.learning_rate": 1e-6,
    "optimizer.schedule": "cosine",
    "optimizer.warmup_ratio": 0.005,
    "optimizer.name": "paged_adamw_8bit",
    "optimizer.weight_decay": 0.1,
    "optimizer.max_grad_norm": 0.1,
    "optimizer.betas": (0.999999, 0.999999),
    "rollout.prompts_per_step": 1,
    "rollout.group_size": 8,
    "rollout.temperature": 1.0,
    "rollout.gpu_memory_utilization": 0.4,
    "training.epochs": 1,
    "training.save_every": 500,
    "seed": 3407,
    "model.load_in_4bit": True,
    "model.max_seq_length": 5500,
    "model.lora.target_modules": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "data.max_prompt_tokens": 4000,
    "objective.name": "gtpo",
    "objective.entropy_coef": 0.1,
    "objective.kl_coef": 0.0,
    "objective.num_iterations": 1,
    "objective.filter.enabled": "auto",
    "objective.filter.threshold": math.log(2),
    "objective.conflict.negative_weight": 0.0,
    "objective.conflict.positive_weight": 2.0,
    "rewards.format.mode": "presence",
}


def value(recipe: Recipe, dotted: str) -> Any:
    found: Any = recipe
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", MAIN)
def test_main_recipes_hold_every_value_of_listing_1(name: str) -> None:
    recipe = load_recipe(name)
    assert {key: value(recipe, key) for key in LISTING_1} == LISTING_1
    llama = name.startswith("llama8b")
    assert recipe.model.name == ("meta-llama/Llama-3.1-8B-Instruct" if llama else "Qwen/Qwen2.5-3B-Instruct")
    assert recipe.model.lora is not None
    assert (recipe.model.lora.rank, recipe.model.lora.alpha) == ((128, 128) if llama else (64, 64))
    assert recipe.data.benchmark == name.split("_")[1]
    assert recipe.evaluation.benchmarks == (recipe.data.benchmark,)


GRPO = {"objective.name": "grpo", "objective.conflict.enabled": False, "objective.filter.enabled": "never",
        "objective.entropy_coef": 0.0, "optimizer.betas": (0.9, 0.95)}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "g12": {"rollout.group_size": 12},
    "grpo_beta0": GRPO | {"objective.kl_coef": 0.0},
    "grpo_beta1e-6": GRPO | {"objective.kl_coef": 1e-6},
    "grpo_beta0.04": GRPO | {"objective.kl_coef": 0.04},
    "sft": GRPO | {"objective.name": "sft"},
    "conflict_only": {"objective.conflict.enabled": True, "objective.filter.enabled": "never",
                      "objective.entropy_coef": 0.0},
    "gamma0.01": {"objective.entropy_coef": 0.01, "objective.filter.enabled": "auto"},
    "gamma0.001": {"objective.entropy_coef": 0.001},
    "gamma1e-6": {"objective.entropy_coef": 1e-6},
    "no_filter": {"objective.filter.enabled": "never", "objective.entropy_coef": 0.1},
    "threshold0.7": {"objective.filter.threshold": 0.7, "objective.filter.enabled": "auto"},
    "threshold1.05": {"objective.filter.threshold": 1.05},
    "threshold2.0": {"objective.filter.threshold": 2.0, "objective.filter.only_negative": False},
    "negative0.7": {"objective.filter.threshold": 0.7, "objective.filter.only_negative": True},
    "negative1.05": {"objective.filter.threshold": 1.05, "objective.filter.only_negative": True},
    "negative2.0": {"objective.filter.threshold": 2.0, "objective.filter.only_negative": True},
    "grpo_entropy": GRPO | {"objective.filter.enabled": "auto", "objective.entropy_coef": 0.1},
    "grpo_betas": GRPO | {"optimizer.betas": (0.999999, 0.999999)},
    "betas0.9": {"objective.name": "gtpo", "optimizer.betas": (0.9, 0.95), "objective.conflict.enabled": True},
    "released_code": {"objective.compat": "released_code", "objective.filter.threshold": 0.7,
                      "objective.filter.enabled": "always", "objective.advantage_scale": "none"},
}  # fmt: skip


@pytest.mark.parametrize("main", MAIN)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_differs_from_its_main_recipe_by_its_switches_and_nothing_else(main: str, variant: str) -> None:
    recipe = load_recipe(f"{main}_{variant}")
    expected = VARIANTS[variant]
    assert {key: value(recipe, key) for key in expected} == expected
    changed = {key for key, wanted in LISTING_1.items() if value(recipe, key) != wanted}
    assert changed <= set(expected)


def test_every_main_recipe_has_every_variant_and_two_fit_small_gpus() -> None:
    shipped = set(shipped_recipes())
    assert {f"{main}_{variant}" for main in MAIN for variant in VARIANTS} <= shipped
    for name, size in (("llama8b_gsm8k_24gb", 1536), ("qwen3b_gsm8k_16gb", 1536)):
        assert load_recipe(name).model.max_seq_length == size


# -- extends ----------------------------------------------------------------------------------------------------------


def write(file: Path, document: dict[str, Any]) -> Path:
    file.write_text(yaml.safe_dump(document))
    return file


def test_a_recipe_extends_a_file_beside_it_or_a_shipped_one(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", {"model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"}, "seed": 5})
    for named in ("base", "base.yaml"):
        child = write(tmp_path / "child.yaml", {"extends": named, "data": {"limit": 7}})
        recipe = load_recipe(child, ["seed=6"])
        assert (recipe.data.benchmark, recipe.data.limit, recipe.seed) == ("arithmetic", 7, 6)
    child = write(tmp_path / "child.yaml", {"extends": "llama8b_gsm8k", "rollout": {"group_size": 4}})
    assert load_recipe(child).rollout.group_size == 4
    assert load_recipe(child).model.max_seq_length == 5500


def test_defaults_follow_from_what_the_two_files_say_together(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", {"model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"}})
    child = write(tmp_path / "child.yaml", {"extends": "base", "objective": {"name": "grpo"}})
    recipe = load_recipe(child)
    assert recipe.model.lora is None  # as for every built-in model
    assert recipe.objective.conflict.enabled is False
    assert recipe.evaluation.benchmarks == ("arithmetic",)


@pytest.mark.parametrize(
    ("extends", "words"),
    [("nowhere", "extends: nowhere: no such file"), (3, "expected the name of a recipe"),
     ("llama8b_gsm8k_g12", "extends another recipe itself"), ("child", "the recipe extends itself")],
)  # fmt: skip
def test_what_cannot_be_extended(tmp_path: Path, extends: Any, words: str) -> None:
    child = write(tmp_path / "child.yaml", {"extends": extends})
    with pytest.raises(RecipeError, match=words):
        load_recipe(child)
