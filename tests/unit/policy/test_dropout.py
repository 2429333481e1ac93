"""Reinforcement learning trains without dropout, whoever asks for it: a recipe or a model's configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import sampler_of
from policy_contract import ragged_rows
from small_models import random_model, tiny_tokenizer
from small_steps import (
    letters,  # noqa: F401  # the recipe's reward, by name
    whole_step,
)

from gtpo_cli.evaluation.probe import mean_entropies
from gtpo_cli.job import Job
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy.packing import training_budget
from gtpo_cli.policy.policy import active_dropout, switch_off_dropout
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.training import step as step_module
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.setup import Setup, set_up
from gtpo_cli.training.step import StepParts
from gtpo_cli.training.stopwatch import Stopwatch


def recipe(name: str | Path = "builtin:tiny", *overrides: str, lora: Any = None) -> Recipe:
    document = {
        "model": {"name": str(name), "lora": lora, "load_in_4bit": False, "dtype": "float32", "max_seq_length": 128,
                  "gradient_checkpointing": False},
        "data": {"benchmark": "arithmetic", "max_prompt_tokens": 64, "limit": 16, "system_prompt": None},
        "rollout": {"group_size": 4, "prompts_per_step": 2, "max_completion_tokens": 40},
        "rewards": {"plugins": [{"name": "small_steps:letters", "weight": 1.0}]},
        "objective": {"initial_entropy": 0.5, "num_iterations": 2, "filter": {"enabled": "never"}},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3, "warmup_ratio": 0.5},  # 0 at the first step
        "training": {"max_steps": 2},
        "tracking": {"wandb": {"mode": "off"}},
    }  # fmt: skip
    return build_recipe(document, overrides, where="test")


def model_of(kind: str) -> Any:
    """Small models whose configuration asks for dropout, each in its own words."""
    from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, OPTConfig, OPTForCausalLM

    torch.manual_seed(0)
    ends = {"vocab_size": 104, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "gpt2":  # 0.1 each, which its configuration does not have to say
        return GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=128, **ends))
    if kind == "opt":
        return OPTForCausalLM(
            OPTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, dropout=0.3,
                      max_position_embeddings=128, word_embed_proj_dim=64, layerdrop=0.2, **ends)
        )  # fmt: skip
    if kind == "gpt_neox":
        return GPTNeoXForCausalLM(
            GPTNeoXConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                          hidden_dropout=0.3, attention_dropout=0.3, max_position_embeddings=128, **ends)
        )  # fmt: skip
    return random_model(kind, attention_dropout=0.3)[0]


KINDS = {"llama": 0.3, "qwen2": 0.3, "gpt2": 0.1, "opt": 0.3, "gpt_neox": 0.3}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_models_configuration_asks_for_is_off(kind: str, tmp_path: Path) -> None:
    model_of(kind).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    said: list[str] = []
    policy: Any = set_up(Parts(recipe(tmp_path)).training_job(), say=said.append).policy
    assert f"the model's own dropout (up to {KINDS[kind]:g}) is off, since only SFT trains with it" in " ".join(said)
    assert active_dropout(policy.model) == []
    batch, state = ragged_rows(), torch.get_rng_state()
    trained = policy.token_logprobs(batch)
    with torch.no_grad():
        measured = policy.token_logprobs(batch)
    for ours, theirs in zip(trained, measured, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    if kind != "opt":  # which draws a number for each layer whatever its layerdrop
        assert torch.equal(torch.get_rng_state(), state)
    policy.save(tmp_path / "saved")
    written, saved = (json.loads((tmp_path / folder / "config.json").read_text()) for folder in (".", "saved"))
    names = {name for name in written if "drop" in name}
    assert {name: saved[name] for name in names} == {name: written[name] for name in names}
    assert KINDS[kind] in [written[name] for name in names]

    # SFT has it
    said.clear()
    policy = set_up(
        Parts(recipe(tmp_path, "objective.name=sft", "rollout.max_completion_tokens=64")).training_job(),
        say=said.append,
    ).policy
    assert not any("dropout" in line for line in said)
    assert max(value for *_, value in active_dropout(policy.model)) == KINDS[kind]
    assert not torch.equal(policy.token_logprobs(batch)[0], policy.token_logprobs(batch)[0])


def test_it_is_found_in_layers_and_in_what_functions_are_given() -> None:
    model = random_model("llama", attention_dropout=0.25)[0]
    model.model.layers[0].mlp.extra = torch.nn.Dropout(0.5)
    found = {(type(module).__name__, name, value) for module, name, value in active_dropout(model)}
    assert found == {("LlamaAttention", "attention_dropout", 0.25), ("Dropout", "p", 0.5)}
    assert switch_off_dropout(model) == 0.5
    assert switch_off_dropout(model) == 0.0
    assert model.config.attention_dropout == 0.25


def first_step(job: Job, setup: Setup, ratios: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The first step of a run, whose learning rate is 0; every ratio's logarithm that the loss was given."""
    policy: Any = setup.policy
    asked = job.recipe
    loss = step_module.policy_loss

    def watched(logp: Any, c: Any, mask: Any, *, old_logprobs_BGT: Any, **rest: Any) -> Any:
        if old_logprobs_BGT is not None:
            ratios.append((logp.detach() - old_logprobs_BGT)[mask])
        return loss(logp, c, mask, old_logprobs_BGT=old_logprobs_BGT, **rest)

    monkeypatch.setattr(step_module, "policy_loss", watched)
    updater = Updater(policy.trainable_parameters(), asked.optimizer, total_steps=10)
    size = training_budget(8, longest_row=128, warn=print)
    sampler = sampler_of(policy, asked)
    with Scorer(asked.rewards) as scorer:
        parts = StepParts(asked.objective, asked.rollout, policy, sampler, scorer, updater, 0.5, size)
        result = whole_step(parts, job.data.prompts[:2], seed=3, clock=Stopwatch())
    assert {each.learning_rate for each in result.iterations} == {0.0}
    return result


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_ratio_is_one_where_nothing_changed_and_entropies_are_the_probes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_of(kind).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    asked = recipe(tmp_path)
    job = Parts(asked).training_job()
    setup = set_up(job, say=lambda text: None)
    ratios: list[torch.Tensor] = []
    result = first_step(job, setup, ratios, monkeypatch)
    assert sum(map(len, ratios)) == int(result.mask_NT.sum())  # every token's, at iteration two
    assert all(bool((ratio == 0.0).all()) for ratio in ratios)
    probed = torch.tensor(mean_entropies(setup.policy, result.samples.groups))
    torch.testing.assert_close(result.by_group(result.mean_entropy_N), probed, rtol=0, atol=1e-6)

    # What it is about: with the model's dropout on, neither holds.
    for module in setup.policy.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    ratios.clear()
    result = first_step(job, setup, ratios, monkeypatch)
    assert torch.cat(ratios).abs().mean() > 0.05
    probed = torch.tensor(mean_entropies(setup.policy, result.samples.groups))
    assert (result.by_group(result.mean_entropy_N) - probed).abs().max() > 1e-3
