"""The sweeps that ship are what the script writes, and their comparisons are what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from gtpo_cli.recipe import Recipe
from gtpo_cli.sweeps.spec import load_sweep, shipped_sweeps

ROOT = Path(__file__).resolve().parents[3]


def variants(name: str) -> dict[str, Recipe]:
    return {run.variant: run.recipe for run in load_sweep(name).runs if run.seed == load_sweep(name).file.seeds[0]}


@pytest.mark.parametrize("twin", ["", "_llama8b"])
def test_what_the_variants_switch(twin: str) -> None:
    methods = variants(f"fig2_methods{twin}")
    assert {name: (r.objective.name, r.objective.kl_coef) for name, r in methods.items()} == {
        "gtpo": ("gtpo", 0.0), "grpo_beta0": ("grpo", 0.0), "grpo_beta1e-6": ("grpo", 1e-6),
        "grpo_beta0.04": ("grpo", 0.04), "sft": ("sft", 0.0),
    }  # fmt: skip
    if twin:
        assert methods["gtpo"].optimizer.betas == (0.999999, 0.999999)
        assert methods["grpo_beta0"].optimizer.betas == (0.9, 0.95)
    conflict = variants(f"fig3_conflict{twin}")
    switches = {
        name: (r.objective.conflict.enabled, r.objective.filter.enabled, r.objective.entropy_coef)
        for name, r in conflict.items()
    }
    assert switches == {
        "gtpo": (True, "auto", 0.1), "conflict_only": (True, "never", 0.0), "without_conflict": (False, "auto", 0.1),
        "grpo": (False, "never", 0.0),
    }  # fmt: skip
    control = variants(f"fig4d_entropy_control{twin}")["grpo_entropy"].objective
    assert (control.name, control.conflict.enabled, control.filter.enabled, control.entropy_coef) == (
        "grpo", False, "auto", 0.1,
    )  # fmt: skip
    assert variants(f"conflict_variants{twin}")["all_positions"].objective.conflict.span == "all"
    assert variants(f"fig5b_group_size{twin}")["grpo_g12"].rollout.group_size == 12


def test_every_comparison_of_the_paper_has_a_twin_at_full_size() -> None:
    shipped = shipped_sweeps()
    figures = [name for name in shipped if name.startswith(("fig", "conflict", "reward")) and "8b" not in name]
    assert len(figures) == 11
    assert all(f"{name}_llama8b" in shipped for name in figures)
    for name in figures:
        small, large = load_sweep(name).file, load_sweep(f"{name}_llama8b").file
        assert list(small.variants) == list(large.variants)
        assert load_sweep(f"{name}_llama8b").runs[0].recipe.model.name == "meta-llama/Llama-3.1-8B-Instruct"
