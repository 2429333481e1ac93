"""The transformers policy against plain forward passes with full logits, on real (small, random) models."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from families import family_model
from jobs import policy_of
from policy_contract import PROMPTS, PolicyContract, ragged_rows, save_model
from small_models import random_model

from gtpo_cli.errors import CheckpointError, ModelError
from gtpo_cli.policy.loading import read_model
from gtpo_cli.policy.sampler import SamplingParams
from gtpo_cli.policy.transformers_policy import TransformersPolicy, load_transformers_policy
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import load_recipe
from gtpo_cli.recipe.schema import LoraRecipe, ModelRecipe, OptimizerRecipe
from gtpo_cli.training.optimizers import Updater


class TestContract(PolicyContract):
    backend = "transformers"


def load(folder: Path, **changes: Any) -> TransformersPolicy:
    settings: dict[str, Any] = {
        "name": str(folder),
        "load_in_4bit": False,
        "gradient_checkpointing": False,
        "max_seq_length": 128,
        "dtype": "float32",
        "lora": LoraRecipe(rank=4, alpha=8),
    } | changes
    recipe = ModelRecipe(**settings)
    return load_transformers_policy(
        recipe, files=read_model(recipe, str(folder)), temperature=1.0, with_reference=True, seed=1
    )


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base")
    policy = load(base)
    policy.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="no complete weights"):
        load(base, lora=None).load(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="no adapter"):
        policy.load(base)
    wider = load(base, lora=LoraRecipe(rank=4, alpha=8, target_modules=("q_proj",)))
    with pytest.raises(CheckpointError, match="does not fit the recipe's adapter"):
        wider.load(tmp_path / "saved")
    with pytest.raises(ModelError, match=r"this model has no attn_proj; it has .*q_proj"):
        load(base, lora=LoraRecipe(target_modules=("attn_proj",)))
    with pytest.raises(ModelError, match=r"there is no folder .*absent; correct the name, or give a hub id"):
        load(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"without config\.json"):
        load(tmp_path / "empty")


def test_a_model_that_changes_its_logits_is_refused() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    tokenizer = random_model()[1]
    config = Gemma2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, final_logit_softcapping=2.0, eos_token_id=2, initializer_range=1.0,
    )  # fmt: skip
    with pytest.raises(ModelError, match="changes its logits after the output layer"):
        TransformersPolicy(Gemma2ForCausalLM(config), tokenizer, temperature=1.0, max_seq_length=64)


def test_the_context_of_the_model_bounds_the_recipe(tmp_path: Path) -> None:
    assert load(save_model(tmp_path), max_seq_length=5500).max_seq_length == 256


def test_dropout_is_for_training_only(tmp_path: Path) -> None:
    policy = load(save_model(tmp_path, attention_dropout=0.5))
    batch, state = ragged_rows(), torch.get_rng_state()
    with torch.no_grad():
        first, second = (policy.token_logprobs(batch)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(policy.token_logprobs(batch)[0], policy.token_logprobs(batch)[0])


def test_gradient_checkpointing_changes_nothing(tmp_path: Path) -> None:
    base = save_model(tmp_path)
    gradients = []
    for checkpointing in (False, True):
        policy = load(base, gradient_checkpointing=checkpointing)
        policy.token_logprobs(ragged_rows())[0].sum().backward()
        gradients.append([parameter.grad for parameter in policy.trainable_parameters()])
    assert any(gradient.abs().max() > 0 for gradient in gradients[0])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_4bit_gradients_flow_after_generation(tmp_path: Path, dtype: str) -> None:
    """The trap of quantization.py: without keep_weights_differentiable the second gradient is lost on some CPUs."""
    pytest.importorskip("bitsandbytes", reason="4-bit weights need the extra bnb")
    policy = load(save_model(tmp_path), load_in_4bit=True, dtype=dtype)
    layers = [module for module in policy.model.modules() if hasattr(module, "support_avx512bf16_for_cpu")]
    assert len(layers) == 14  # seven projections in two layers
    assert not any(layer.support_avx512bf16_for_cpu for layer in layers)
    batch = ragged_rows()

    def gradients() -> list[torch.Tensor]:
        policy.model.zero_grad()
        policy.token_logprobs(batch)[0].sum().backward()
        return [
            parameter.grad.float().clone() for name, parameter in policy.model.named_parameters() if "lora_B" in name
        ]

    before = gradients()
    TransformersSampler(policy).sample([PROMPTS[0]], 4, SamplingParams(max_completion_tokens=6))
    after = gradients()
    assert all(gradient.abs().max() > 0 for gradient in before)
    for one, two in zip(before, after, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_4bit_logprobs_agree_with_the_dequantised_weights(tmp_path: Path) -> None:
    """The quantised policy must be the model its weights say: dequantise them into a plain model and compare."""
    bnb = pytest.importorskip("bitsandbytes", reason="4-bit weights need the extra bnb")
    base = save_model(tmp_path)
    policy = load(base, load_in_4bit=True)
    plain = load(base)
    layers = dict(plain.model.named_modules())
    for name, module in policy.model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            weight = bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            layers[name].weight.data.copy_(weight.view_as(layers[name].weight))
    ours, theirs = policy.token_logprobs(ragged_rows())[0], plain.token_logprobs(ragged_rows())[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("unsloth") is not None, reason="Unsloth is installed here")
def test_a_missing_unsloth_is_an_error_with_the_remedy() -> None:
    recipe = load_recipe("tiny_arithmetic", ["model.backend=unsloth"])
    with pytest.raises(ModelError, match=r"unsloth cannot be imported .*\.\[cuda\].*backend: transformers"):
        policy_of(recipe)


def test_of_a_model_of_text_and_images_only_the_text_part_trains(tmp_path: Path) -> None:
    """Weight decay would shrink weights that no gradient reaches."""
    model, tokenizer = family_model("Gemma 3, text and images")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    policy = load(tmp_path, lora=None)
    before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    settings = OptimizerRecipe(name="adamw", learning_rate=0.1, weight_decay=0.1, warmup_ratio=0.0)
    updater = Updater(policy.trainable_parameters(), settings, total_steps=2)
    updater.backward(policy.token_logprobs(ragged_rows())[0].sum())
    updater.update()
    moved = {name for name, weight in policy.model.named_parameters() if not torch.equal(weight, before[name])}
    outside = {name for name in before if "vision" in name or "multi_modal" in name}
    assert len(outside) > 10
    assert moved == before.keys() - outside
