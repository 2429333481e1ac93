"""From a recipe to verl's command, as far as it can be tested without verl: tests/verl has the rest."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from verl_command import main

from gtpo_cli.errors import ModelError, RecipeError
from gtpo_cli.integrations.verl_config import check, command, environment
from gtpo_cli.integrations.verl_rules import RULES, Plan
from gtpo_cli.recipe import build_recipe
from gtpo_cli.recipe.schema import Recipe

DOCUMENT = {
    "model": {"name": "some/model", "load_in_4bit": False, "max_seq_length": 512},
    "data": {"benchmark": "gsm8k", "max_prompt_tokens": 256},
    "rollout": {"max_completion_tokens": 128},
    "objective": {"initial_entropy": 0.4},
    "optimizer": {"name": "adamw"},
}
REFUSED = {
    "model.revision": "main",
    "model.backend": "unsloth",
    "model.load_in_4bit": "true",
    "model.lora.alpha": "12.5",
    "model.lora.dropout": "0.1",
    "rollout.engine": "transformers",
    "rollout.mask_truncated": "true",
    "objective.name": "sft",
    "objective.compat": "released_code",
    "objective.initial_entropy": "null",
    "objective.audit": "true",
    "optimizer.name": "adamw_8bit",
    "optimizer.schedule": "linear",
    "training.guard.action": "stop",
    "training.eval_every": "10",
}


def plan(*overrides: str, gpus: int = 1) -> Plan:
    recipe = build_recipe(DOCUMENT, overrides, where="test")
    return Plan(recipe, "some/model", Path("/runs/one"), recipe.model.max_seq_length, gpus)


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        sections = [kind for kind in (info.annotation, *get_args(info.annotation)) if isinstance(kind, type)]
        below = [kind for kind in sections if issubclass(kind, BaseModel)]
        yield prefix + name
        for kind in below:
            yield from keys_of(kind, f"{prefix}{name}.")


def test_every_key_of_a_recipe_has_a_rule_and_every_rule_a_key() -> None:
    known = set(keys_of(Recipe))
    named = [rule.key for rule in RULES]
    assert len(named) == len(set(named))
    assert set(named) <= known
    leaves = {key for key in known if not any(other.startswith(key + ".") for other in known)}
    without = {key for key in leaves if not any(key == name or key.startswith(name + ".") for name in named)}
    assert without == set()
    # a new key of the engine's is decided about by someone, not by the rule of its section
    engine = {key for key in leaves if key.split(".")[0] in ("model", "rollout", "optimizer")}
    assert engine <= set(named)


def test_no_two_rules_set_one_key() -> None:
    sets = [key for rule in RULES for key in rule.sets]
    assert len(sets) == len(set(sets))


def test_a_recipe_that_verl_can_do_is_not_refused() -> None:
    check(plan())
    check(plan("rollout.group_size=12", gpus=4))


@pytest.mark.parametrize("key", REFUSED)
def test_what_has_no_counterpart_is_refused_by_name_with_a_remedy(key: str) -> None:
    extra = ["evaluation.limit=5"] if key == "training.eval_every" else []
    with pytest.raises(RecipeError) as caught:
        check(plan(f"{key}={REFUSED[key]}", *extra))
    assert any(problem.startswith(f"{key}: ") for problem in caught.value.problems), caught.value.problems


def test_a_rule_that_refuses_is_tested() -> None:
    correction = {"rollout.importance_correction", "training.guard"}  # below, and as training.guard.action
    assert {rule.key for rule in RULES if rule.refuses} - correction <= set(REFUSED)
    assert [rule.key for rule in RULES if bool(rule.refuses) != ("refused" in rule.note)] == []


def test_all_problems_come_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        check(plan("model.load_in_4bit=true", "optimizer.name=adamw_8bit", "objective.initial_entropy=null", gpus=3))
    found = [problem.partition(":")[0] for problem in caught.value.problems]
    assert found == [
        "model.load_in_4bit", "objective.initial_entropy", "optimizer.name", "rollout.prompts_per_step"
    ]  # fmt: skip
    assert "gtpo probe-entropy" in str(caught.value)


def test_the_initial_entropy_is_asked_for_only_where_the_filter_reads_it() -> None:
    check(plan("objective.initial_entropy=null", "objective.filter.enabled=always"))
    check(plan("objective.name=grpo", "objective.initial_entropy=null", "objective.filter.enabled=never"))


def test_a_correction_of_probabilities_that_verl_does_not_report_is_refused() -> None:
    check(plan("rollout.importance_correction=truncated"))
    with pytest.raises(RecipeError, match=r"rollout\.importance_correction.*top_p"):
        check(plan("rollout.importance_correction=truncated", "rollout.top_p=0.9"))


def test_a_context_without_room_for_a_prompt_is_refused() -> None:
    assert plan().max_prompt_tokens == 256
    assert plan("rollout.max_completion_tokens=500").max_prompt_tokens == 12
    with pytest.raises(RecipeError, match=r"rollout\.max_completion_tokens: 512 leaves .* 512 tokens"):
        check(plan("rollout.max_completion_tokens=512"))


def test_wandb_s_settings_are_variables() -> None:
    assert set(environment(plan("tracking.wandb.mode=off").recipe)) == {"VERL_USE_EXTERNAL_MODULES"}
    found = environment(plan("tracking.wandb={mode: online, entity: us, tags: [a, b]}").recipe)
    assert found["WANDB_MODE"] == "online"
    assert (found["WANDB_ENTITY"], found["WANDB_TAGS"]) == ("us", "a,b")
    assert environment(plan().recipe)["WANDB_MODE"] == "offline"


def test_the_command_is_for_a_shell() -> None:
    text = command(plan("tracking.wandb={mode: online, tags: ['it''s']}"))
    assert text.startswith("VERL_USE_EXTERNAL_MODULES=gtpo_cli.integrations.verl ")
    assert "python -m verl.trainer.main_ppo \\\n  trainer.v1.trainer_mode=gtpo \\\n" in text
    assert "\n  actor_rollout_ref.rollout.n=8 \\\n" in text


def test_the_script_says_errors_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny_arithmetic", "--out", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: objective.initial_entropy: null")
    given = ["tiny_arithmetic", "--set", "objective.initial_entropy=0.4", "--out", str(tmp_path / "run")]
    assert main([*given, "--set", "data.limit=4"]) == 2
    assert "rollout.prompts_per_step: 8, but there are 4 problems" in capsys.readouterr().err
    assert main([*given, "--set", "data.limit=9"]) == 0
    assert "trainer.v1.trainer_mode=gtpo" in capsys.readouterr().out
    assert (tmp_path / "run" / "train.parquet").exists()


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed")
def test_without_verl_the_plug_in_names_the_extra() -> None:
    with pytest.raises(ModelError, match=r"pip install 'gtpo_cli\[verl\]'"):
        importlib.import_module("gtpo_cli.integrations.verl")
