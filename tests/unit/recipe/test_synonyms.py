"""Words of other tools: where a recipe or a command does not know one, it says what to write here."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gtpo_cli.cli.app import app
from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.recipe.section import fields_of
from gtpo_cli.recipe.synonyms import SYNONYMS, TABLE

SMALLEST = {"model": {"name": "some/model"}, "data": {"benchmark": "gsm8k"}}
KEYS = fields_of(Recipe)

# Typed by hand, not read from the table: what a word must lead to, and a word on what it is here.
TYPED = {
    "num_generations": ("rollout.group_size", "completions sampled for each prompt"),
    "beta": ("objective.kl_coef", "KL term"),
    "lr": ("optimizer.learning_rate", "peak learning rate"),
    "gradient_accumulation_steps": ("training.micro_batch_size", "a larger step is a larger prompts_per_step"),
    "num_train_epochs": ("training.epochs", "passes over the data"),
    "vllm_gpu_memory_utilization": ("rollout.gpu_memory_utilization", "vLLM"),
    "max_completion_length": ("rollout.max_completion_tokens", "truncated"),
    "max_prompt_length": ("data.max_prompt_tokens", "dropped and counted"),
    "per_device_train_batch_size": ("rollout.prompts_per_step", "counted in prompts"),
    "lora_r": ("model.lora.rank", "rank r"),
    "lora_alpha": ("model.lora.alpha", "alpha / rank"),
    "epsilon_high": ("objective.clip.high", "1 + high"),
    "epsilon": ("objective.clip", "clip_epsilon: x in objective sets both ends"),
    "loss_type": ("objective.name", "objective.average"),
    "scale_rewards": ("objective.advantages.config", "{scale: none} for false"),
    "base_model": ("model.name", "hub id"),
    "micro_batch_size": ("training.micro_batch_size", "it changes memory and speed, not the step"),
    "warmup_steps": ("optimizer.warmup_ratio", "a share of all steps"),
    "reward_funcs": ("rewards.plugins", "rewards of your own"),
    "sequence_len": ("model.max_seq_length", "prompt and completion together"),
    "gamma": ("objective.entropy_coef", "subtracted from the advantage"),
}


def problems(document: dict, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        build_recipe(document, overrides, where="r.yaml")
    return caught.value.problems


def said(*arguments: str) -> str:
    """What a command that was refused said, without the box around it."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    return " ".join(done.stderr.replace("│", " ").split())


def test_the_table_leads_to_keys_and_from_words_that_are_none() -> None:
    words = [word for row in TABLE for word in row[0].split()]
    assert len(words) == len(set(words)) == len(SYNONYMS) > 200
    assert {synonym.key for synonym in SYNONYMS.values()} - {None} <= KEYS.keys()
    for word, synonym in SYNONYMS.items():
        beside = (synonym.key or "").rpartition(".")[0]
        assert word not in KEYS, word
        assert f"{beside}.{word}" in {synonym.key} or f"{beside}.{word}" not in KEYS, word
        assert synonym.key or synonym.note, word


@pytest.mark.parametrize("word", sorted(TYPED))
def test_a_word_of_another_tool_names_the_key_and_what_it_is_here(word: str) -> None:
    key, meaning = TYPED[word]
    written = word.upper().replace("_", "-")
    for found, name in (
        (problems(SMALLEST | {word: 1}), f"r.yaml: {word}"),
        (problems(SMALLEST | {"trl": {"grpo": {word: 1}}}), f"r.yaml: trl.grpo.{word}"),
        (problems(SMALLEST, f"objective.{written}=1"), f"--set: objective.{written}"),
    ):
        (problem,) = found
        assert problem.startswith(f"{name}: unknown key; use {key}: ")
        assert meaning in problem


def test_every_word_of_the_table_is_answered_by_it() -> None:
    for word, synonym in SYNONYMS.items():
        assert problems(SMALLEST, f"{word}=1") == [f"--set: {word}: unknown key; {synonym}"]


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["train", "--lr", "1e-5"], "use --set optimizer.learning_rate=VALUE: peak learning rate"),
        (["train", "--max-steps", "100"], "use --set training.max_steps=VALUE: optimiser steps of the run"),
        (["train", "--num_generations=8"], "use --set rollout.group_size=VALUE: G: completions"),
        (["train", "--per-device-train-batch-size", "4"], "--set rollout.prompts_per_step=VALUE: B: prompts"),
        (["train", "--model", "a/b"], "use --set model.name=VALUE: hub id"),
        (["train", "--rollout.group_size", "4"], "use --set rollout.group_size=VALUE"),
        (["train", "--clip-epsilon", "0.2"], "use --set objective.clip=VALUE"),
        (["train", "--logging-steps", "1"], "--logging-steps; every step is logged"),
        (["train", "lr=1e-5"], "unexpected argument lr=1e-5; did you mean --set lr=1e-5?"),
        (["eval", "--max-new-tokens", "9"], "use --set evaluation.max_completion_tokens=VALUE"),
        (["eval", "--max-model-len", "9"], "use --set model.max_seq_length=VALUE"),
        (["recipes", "check", "--epochs", "2"], "use --set training.epochs=VALUE: passes"),
        (["sweep", "fig5a_kl", "--seed", "2"], "(Possible options: --seeds, --set)"),
        (["report", "--lr", "1"], "No such option: --lr"),
    ],
)
def test_an_option_that_is_a_key(arguments: list[str], answer: str) -> None:
    assert answer in said(*arguments)
    assert ("--set" in said(*arguments)) == ("--set" in answer)
