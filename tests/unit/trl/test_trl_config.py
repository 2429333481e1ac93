"""A recipe in TRL's words: what becomes of every key, and what is refused. Needs no TRL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.tools.trl.config import (
    MAY_BE_ADDED,
    RECIPE_DECIDES,
    check_extra,
    check_recipe,
    grpo_arguments,
)


def arguments(recipe: Recipe, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "engine": "transformers", "processes": 1, "prompts_per_step": recipe.rollout.prompts_per_step,
        "longest_prompt": 100, "max_seq_length": recipe.model.max_seq_length, "steps": 600, "dtype": "bfloat16",
        "extra": {},
    }  # fmt: skip
    return grpo_arguments(recipe, Path("out"), **settings | changes)


def test_the_paper_s_recipe() -> None:
    found = arguments(load_recipe("llama8b_gsm8k"), engine="vllm", processes=4, steps=7473)
    expected = {
        "max_steps": 7473, "num_generations": 8, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1,
        "max_completion_length": 1500, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "loss_type": "grpo", "beta": 0.0,
        "optim": "paged_adamw_8bit", "learning_rate": 1e-6, "adam_beta1": 0.999999, "adam_beta2": 0.999999,
        "weight_decay": 0.1, "max_grad_norm": 0.1, "lr_scheduler_type": "cosine", "warmup_steps": 38, "seed": 3407,
        "save_steps": 500, "use_vllm": True, "vllm_gpu_memory_utilization": 0.4, "vllm_max_model_length": 5500,
        "vllm_importance_sampling_correction": False, "bf16": True, "fp16": False, "gradient_checkpointing": True,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


REFUSED = {
    "objective.name=sft": "objective.name: sft has no counterpart",
    "model.backend=unsloth": "model.backend: unsloth",
    "training.guard.action=rollback": "training.guard.action: rollback",
    "training.eval_every=5": "training.eval_every:",
    "rollout.importance_correction=truncated": "rollout.importance_correction:",
    "rollout.max_num_seqs=64": "rollout.max_num_seqs: TRL starts vLLM without it;",
    "rollout.standby=never": "rollout.standby: TRL starts vLLM without it; remove it, or use --trl vllm_enable_sleep",
    "rollout.vllm={enforce_eager: true}": "rollout.vllm: TRL starts vLLM without it;",
}


def test_every_key_without_a_counterpart_is_named_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        check_recipe(load_recipe("tiny_arithmetic", REFUSED))
    lines = str(caught.value).splitlines()
    assert len(lines) == len(REFUSED)
    for words in REFUSED.values():
        assert any(line.startswith(words) for line in lines), words
    with pytest.raises(RecipeError, match=r"training\.save_every: TRL's checkpoints do not hold samples for coming"):
        check_recipe(load_recipe("tiny_arithmetic", ["rollout.steps_per_generation=7"]))
    check_recipe(load_recipe("tiny_arithmetic"))
    check_recipe(load_recipe("llama8b_gsm8k", ["rollout.importance_correction=truncated", "rollout.engine=vllm"]))


def test_the_context_must_hold_every_completion() -> None:
    recipe = load_recipe("tiny_arithmetic")
    with pytest.raises(RecipeError, match=r"rollout\.max_completion_tokens: the longest prompt \(100 tokens\)"):
        arguments(recipe, max_seq_length=100 + recipe.rollout.max_completion_tokens - 1)
    arguments(recipe, max_seq_length=100 + recipe.rollout.max_completion_tokens)


def test_the_recipe_decides_what_is_passed_on_and_nothing_of_it_may_be_added() -> None:
    kl = ["objective.kl_coef=0.1", "model.trust_remote_code=true"]
    passed = arguments(load_recipe("tiny_arithmetic", kl), engine="vllm")
    assert passed.keys() | {"use_cpu"} == RECIPE_DECIDES
    assert not RECIPE_DECIDES & MAY_BE_ADDED
    assert passed["model_init_kwargs"] == {"trust_remote_code": True}
    assert passed["scale_rewards"] == "group"
    unscaled = load_recipe("tiny_arithmetic", ["objective.advantages.config={scale: none}"])
    assert arguments(unscaled)["scale_rewards"] == "none"


@pytest.mark.parametrize(
    ("settings", "engine", "problem"),
    [
        ({"scale_rewards": "batch"}, "transformers", "--trl scale_rewards: the recipe decides that"),
        ({"steps_per_generation": 4}, "transformers", "--trl steps_per_generation: the recipe decides that"),
        ({"generation_batch_size": 8}, "transformers", "generation_batch_size: .*; use rollout.prompts_per_step"),
        ({"min_p": 0.1}, "transformers", "min_p: .*; training samples from the policy itself"),
        ({"delta": 2.0}, "transformers", "delta: is not for the run of a recipe; GTPOTrainer in a program of your own"),
        ({"use_cpu": True, "use_vllm": True}, "transformers", "use_cpu, use_vllm: the recipe decides that"),
        ({"fsdp": "full_shard"}, "transformers", "fsdp: .*accelerate config"),
        ({"vllm_mode": "server"}, "transformers", "vllm_mode: would be ignored; it needs rollout.engine: vllm"),
        ({"vllm_server_host": "a"}, "vllm", "vllm_server_host: would be ignored; it needs .* vllm_mode=server"),
        ({"vllm_mode": "server", "vllm_enable_sleep_mode": True}, "vllm", "sleep_mode: .* vllm_mode=colocate"),
        ({"cache_implementation": "static"}, "vllm", "cache_implementation: would be ignored; .* transformers"),
        ({"vllm_mode": "server", "vllm_server_host": "a", "pad_to_multiple_of": 8}, "vllm", None),
        ({"vllm_tensor_parallel_size": 2, "ddp_bucket_cap_mb": 10}, "vllm", None),
        ({"cache_implementation": "static"}, "transformers", None),
    ],
)  # fmt: skip
def test_what_would_be_ignored_or_would_change_the_run_is_refused(
    settings: dict[str, Any], engine: str, problem: str | None
) -> None:
    recipe = load_recipe("llama8b_gsm8k", [f"rollout.engine={engine}"])
    if problem is None:
        check_extra(settings, recipe)
        return
    with pytest.raises(RecipeError, match=problem):
        check_extra(settings, recipe)


def test_the_page_names_every_setting_and_every_refusal() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "trl.md").read_text(encoding="utf-8")
    missing = [name for name in sorted(RECIPE_DECIDES | MAY_BE_ADDED) if f"`{name}`" not in page]
    assert missing == []
    for words in REFUSED:
        key, value = words.split("=")
        assert f"`{key}`" in page or f"`{key}: {value}`" in page


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gtpo", ("grpo", "token", "group", 0.2, 0.2)),
        ("grpo", ("grpo", "token", "group", 0.2, 0.2)),
        ("dr_grpo", ("dr_grpo", "token", "none", 0.2, 0.2)),
        ("dapo", ("dapo", "token", "group", 0.2, 0.28)),
        ("gspo", ("grpo", "sequence", "group", 3e-4, 4e-4)),
        ("cispo", ("cispo", "token", "group", 0.2, 5.0)),
        ("rloo", ("luspo", "token", "none", 0.2, 0.2)),
    ],
)
def test_every_method_in_the_words_of_trl(name: str, expected: tuple[object, ...]) -> None:
    found = arguments(load_recipe("tiny_arithmetic", [f"objective.name={name}"]))
    words = ("loss_type", "importance_sampling_level", "scale_rewards", "epsilon", "epsilon_high")
    assert tuple(found[word] for word in words) == expected


def test_what_no_loss_of_trl_is_is_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"objective\.token_weights\.rule: with loss\.rule: sequence TRL has one coefficient"
    ):
        check_recipe(load_recipe("tiny_arithmetic", ["objective.name=gspo", "objective.token_weights.rule=conflict"]))
    with pytest.raises(RecipeError, match=r"objective\.loss\.rule: weight works in TRL only with average: token"):
        check_recipe(load_recipe("tiny_arithmetic", ["objective.name=cispo", "objective.average=completion"]))
