"""The paper's recipes: every value of Listing 1, what the small cards' change, what each needs, and `extends`."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import yaml
from write_memory_page import ROOT
from write_memory_page import needs as needs_by_plan

from gtpo_cli.errors import RecipeError
from gtpo_cli.machine.fit import make_plan
from gtpo_cli.machine.installed import GIB, find_gpu
from gtpo_cli.recipe import Recipe, load_recipe, shipped_recipes
from gtpo_cli.recipe.data import PRESETS
from gtpo_cli.recipe.section import recipe_differences

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
    "objective.token_weights.rule": "conflict",
    "objective.token_weights.config": {},
    "objective.advantages.rule": "group",
    "objective.advantages.config": {},
    "objective.loss.rule": "token",
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


@pytest.mark.parametrize(("name", "main"), [("llama8b_gsm8k_24gb", MAIN[0]), ("qwen3b_gsm8k_16gb", MAIN[2])])
def test_what_the_recipes_for_small_cards_change(name: str, main: str) -> None:
    changes = dict(recipe_differences([load_recipe(main), load_recipe(name)]))
    assert {key: values[1] for key, values in changes.items()} == {
        "model.max_seq_length": 1536, "model.lora.rank": 32, "model.lora.alpha": 32, "data.max_prompt_tokens": 512,
        "rollout.max_completion_tokens": 768, "evaluation.max_completion_tokens": 768,
    }  # fmt: skip


# -- what the list says -----------------------------------------------------------------------------------------------

FOR_CARDS = ["llama8b_gsm8k_24gb", "llama8b_gsm8k_80gb", "qwen3b_gsm8k_16gb", "qwen0.6b_gsm8k"]
SMALL = [
    "smollm135m_tasks", "smollm135m_tasks_sft", "smollm135m_words", "smollm135m_words_sft", "tiny_arithmetic",
    "tiny_gsm8k", "tiny_gsm8k_sft", "tiny_tasks",
]  # fmt: skip


def needs(name: str) -> str:
    return shipped_recipes()[name].read_text().splitlines()[1].removeprefix("# Needs ")


def test_the_recipes_ship_and_each_says_what_it_is_for_and_what_it_needs() -> None:
    assert sorted(shipped_recipes()) == sorted([*MAIN, *SMALL, *FOR_CARDS])
    for name, file in shipped_recipes().items():
        about = file.read_text().splitlines()[0]
        assert re.fullmatch(r"# (GTPO|SFT) (on|of) .+\.", about), name
    for name in SMALL:  # measured, on one core
        assert re.fullmatch(r"\d\.\d GiB RAM; \d+(\.\d)? min\.", needs(name)), name


@pytest.mark.parametrize("name", [*MAIN, *FOR_CARDS])
def test_memory_and_hours_in_a_recipe_are_those_of_the_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the longest prompt and the steps that were counted once on the real data (docs/memory.md has them too)."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    plan = make_plan(load_recipe(name), gpu=None)
    assert plan.published
    _, hours = plan.hours[0]
    assert needs(name) == needs_by_plan(name)
    assert needs(name).startswith(f"{plan.memory.peak / GIB:.1f} of {plan.gpu / GIB:.0f} GiB GPU; {hours}; ")


def test_the_first_run_on_a_rented_card_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a listed card of 16 GB it fits and ends in an hour or two. docs/start.md has these figures."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    recipe = load_recipe("qwen0.6b_gsm8k")
    assert recipe.data.template_arguments == {"enable_thinking": False}
    assert recipe.data.system_prompt == PRESETS["qwen_boxed"]
    plans = {short: make_plan(recipe, gpu=find_gpu(short)) for short in ("4060ti", "l4", "4090", "t4")}
    assert [plan.fits for plan in plans.values()] == [True, True, True, False]  # the last has no bfloat16
    counts = plans["4060ti"].counts
    assert counts is not None
    assert (counts.order.total_steps, counts.sampled) == (300, 38_400)
    larger = load_recipe("qwen0.6b_gsm8k", ["model.name=Qwen/Qwen3-1.7B"])
    plans["larger"] = make_plan(larger, gpu=find_gpu("4060ti"))
    found = {name: (f"{plan.memory.peak / GIB:.1f}", *plan.hours[0]) for name, plan in plans.items() if plan.fits}
    assert {name: (memory, str(hours)) for name, (memory, _, hours) in found.items()} == {
        "4060ti": ("14.7", "0.94 to 1.9 h"), "l4": ("20.2", "0.64 to 1.3 h"), "4090": ("21.9", "18 to 35 min"),
        "larger": ("14.7", "2 to 4.1 h"),
    }  # fmt: skip
    assert {mean for _, mean, _ in found.values()} == {204}
    page = " ".join((ROOT / "docs" / "start.md").read_text().split())
    for _, _, hours in found.values():
        assert str(hours) in page


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
    assert recipe.objective.token_weights.rule == "none"
    assert recipe.evaluation.benchmarks == ("arithmetic",)


@pytest.mark.parametrize(
    ("extends", "words"),
    [("nowhere", "extends: nowhere: no such file"), (3, "expected the name of a recipe"),
     ("llama8b_gsm8k_24gb", "extends another recipe itself"), ("child", "the recipe extends itself")],
)  # fmt: skip
def test_what_cannot_be_extended(tmp_path: Path, extends: Any, words: str) -> None:
    child = write(tmp_path / "child.yaml", {"extends": extends})
    with pytest.raises(RecipeError, match=words):
        load_recipe(child)
