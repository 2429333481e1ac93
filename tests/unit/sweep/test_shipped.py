"""The sweeps that ship: each run of the paper is a variant of one."""

from __future__ import annotations

from typing import Any

import pytest

from gtpo_cli.errors import RecipeError
from gtpo_cli.machine.ready import check_recipe
from gtpo_cli.recipe import Recipe, load_recipe, shipped_sweeps
from gtpo_cli.recipe.section import recipe_differences
from gtpo_cli.tools.sweep.execute import seconds_left
from gtpo_cli.tools.sweep.spec import load_sweep

MAIN = ["llama8b_gsm8k", "llama8b_math", "qwen3b_gsm8k", "qwen3b_math"]
GRPO = {
    "objective.name": "grpo", "objective.token_weights.rule": "none", "objective.filter.enabled": "never",
    "objective.entropy_coef": 0.0,
}  # fmt: skip
BETAS = {"optimizer.betas": [0.9, 0.95]}
THRESHOLD, NEGATIVE = "objective.filter.threshold", {"objective.filter.only_negative": True}
# The paper's runs by variant: the sweep, and every key in which its recipe is not the main one's.
PAPER: dict[str, tuple[str, dict[str, Any]]] = {
    "gtpo_g12": ("fig5b_group_size", {"rollout.group_size": 12}),
    "grpo_beta0": ("fig2_methods", GRPO | BETAS),
    "grpo_beta1e-6": ("fig2_methods", GRPO | BETAS | {"objective.kl_coef": 1e-6}),
    "grpo_beta0.04": ("fig2_methods", GRPO | BETAS | {"objective.kl_coef": 0.04}),
    "sft": ("fig2_methods", GRPO | BETAS | {"objective.name": "sft", "training.keep_best": "optim/loss"}),
    "conflict_only": ("fig3_conflict", {"objective.filter.enabled": "never", "objective.entropy_coef": 0.0}),
    "gamma0.01": ("fig4a_gamma", {"objective.entropy_coef": 0.01}),
    "gamma0.001": ("fig4a_gamma", {"objective.entropy_coef": 0.001}),
    "gamma1e-6": ("fig4a_gamma", {"objective.entropy_coef": 1e-6}),
    "no_filter": ("fig4a_gamma", {"objective.filter.enabled": "never"}),
    "threshold0.7": ("fig4b_thresholds", {THRESHOLD: 0.7}),
    "threshold1.05": ("fig4b_thresholds", {THRESHOLD: 1.05}),
    "threshold2.0": ("fig4b_thresholds", {THRESHOLD: 2.0}),
    "negative0.7": ("fig4c_only_negative", NEGATIVE | {THRESHOLD: 0.7}),
    "negative1.05": ("fig4c_only_negative", NEGATIVE | {THRESHOLD: 1.05}),
    "negative2.0": ("fig4c_only_negative", NEGATIVE | {THRESHOLD: 2.0}),
    "grpo_entropy": (
        "fig4d_entropy_control", BETAS | {"objective.name": "grpo", "objective.token_weights.rule": "none"},
    ),
    "grpo_betas0.999999": ("fig6_betas", GRPO),
    "gtpo_betas0.9": ("fig6_betas", BETAS),
}  # fmt: skip


def differences(base: Recipe, other: Recipe) -> dict[str, Any]:
    return {key: values[1] for key, values in recipe_differences([base, other])}


@pytest.mark.parametrize("main", MAIN)
@pytest.mark.parametrize("variant", PAPER)
def test_a_run_of_the_paper_is_a_variant_of_a_sweep(main: str, variant: str) -> None:
    sweep, changes = PAPER[variant]
    (run,) = load_sweep(sweep, recipe=main, only=(variant,), seeds=(3407,)).runs
    assert differences(load_recipe(main), run.recipe) == changes
    assert check_recipe(run.recipe) == []


def test_every_sweep_can_be_tried_on_recipes_of_every_kind() -> None:
    for sweep in shipped_sweeps():
        for recipe in ("llama8b_gsm8k_24gb", "qwen3b_math", "smollm135m_words"):
            loaded = load_sweep(sweep, recipe=recipe, seeds=(3,))
            assert loaded.recipe == recipe
            assert loaded.name == f"{sweep}-{recipe}"
            first = loaded.known[: len(loaded.file.variants)]
            assert [run.variant for run in first] == list(loaded.file.variants)
            assert all(run.recipe.model.name == load_recipe(recipe).model.name for run in first)


def test_a_recipe_that_makes_variants_the_same_is_refused() -> None:
    with pytest.raises(RecipeError, match="variants gtpo and sft are the same recipe; leave one out"):
        load_sweep("fig2_methods", recipe="tiny_gsm8k_sft")
    kept = load_sweep("fig2_methods", recipe="tiny_gsm8k_sft", only=("grpo_beta0", "sft"))
    assert {run.variant for run in kept.runs} == {"grpo_beta0", "sft"}


def test_every_sweep_says_how_long_it_takes_before_it_starts() -> None:
    for sweep in shipped_sweeps():
        loaded = load_sweep(sweep)
        left = seconds_left(loaded, jobs=1)
        assert left is not None, sweep
        assert left >= 30 * loaded.number, sweep


def test_what_the_variants_beyond_the_old_recipes_switch() -> None:
    def changes(sweep: str) -> dict[str, dict[str, Any]]:
        runs = load_sweep(sweep, recipe="llama8b_gsm8k", seeds=(3407,)).runs
        return {run.variant: differences(load_recipe("llama8b_gsm8k"), run.recipe) for run in runs}

    assert changes("fig3_conflict")["without_conflict"] == {"objective.token_weights.rule": "none"}
    assert changes("fig5b_group_size")["grpo_g12"] == GRPO | BETAS | {"rollout.group_size": 12}
    assert changes("conflict_variants") == {
        "gtpo": {}, "prefix": {"objective.conflict.alignment": "prefix"},
        "all_positions": {"objective.conflict.alignment": "anywhere"},
        "weights_0_1": {"objective.token_weights.config.positive": 1.0},
        "weights_0.5_1.5": {
            "objective.token_weights.config.positive": 1.5, "objective.token_weights.config.negative": 0.5,
        },
    }  # fmt: skip
    assert changes("reward_and_scale") == {
        "gtpo": {}, "gtpo_strict": {"rewards.format.mode": "strict"},
        "gtpo_no_scale": {"objective.advantages.config.scale": "none"}, "grpo": GRPO | BETAS,
        "grpo_strict": GRPO | BETAS | {"rewards.format.mode": "strict"},
        "grpo_no_scale": GRPO | BETAS | {"objective.advantages.config.scale": "none"},
    }  # fmt: skip
    for name in ("fig2_methods", "fig4d_entropy_control", "fig5a_kl"):
        assert changes(name)["gtpo"] == {}
    assert changes("learning_rates")["grpo_5e-4"] == GRPO | BETAS | {"optimizer.learning_rate": 5e-4}


def test_the_rules_differ_from_grpo_in_nothing_but_the_rule() -> None:
    sweep = load_sweep("token_rules")
    first = {run.variant: run.recipe for run in sweep.choosing[: len(sweep.file.variants)]}
    controls = {"even", "random"}
    for variant, recipe in first.items():
        changed = differences(first["grpo"], recipe).keys()
        if variant != "gtpo":
            assert {key.split(".")[1] for key in changed} <= {"token_weights", "advantages"}
        if (control := variant.rpartition("_")[2]) in controls:
            rule = first[variant.removesuffix(f"_{control}")]
            assert differences(rule, recipe) == {"objective.token_weights.control": control}
    controlled = [{name.removesuffix(one) for name in first if name.endswith(one)} for one in ("_even", "_random")]
    assert controlled == [{"conflict", "top_entropy", "entropy_advantage", "clip_cov"}] * 2
    assert differences(first["grpo"], first["gtpo"]) == {
        "objective.name": "gtpo", "objective.token_weights.rule": "conflict", "objective.filter.enabled": "auto",
        "objective.entropy_coef": 0.1,
    }  # fmt: skip
