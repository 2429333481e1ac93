"""A model of a given shape with random weights, 4-bit and with an adapter: a step's cost does not hang on the values.

No download: the shape is the published one (`gtpo_cli.machine.shapes.PUBLISHED`), weights are drawn layer by layer on
the device and quantised there, so that the 16-bit model never exists as a whole.
"""

from __future__ import annotations

from typing import Any

import torch

from gtpo_cli.machine.shapes import ModelShape
from gtpo_cli.policy.loading import keep_weights_differentiable
from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.recipe import Recipe

_SCALE = 0.02


def shaped_policy(shape: ModelShape, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> TransformersPolicy:
    """A policy of that shape with 4-bit base weights and the recipe's adapter; its tokenizer is the built-in one."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer

    lora = recipe.model.lora
    assert lora is not None
    torch.manual_seed(recipe.seed)
    model = _quantised(_empty(shape, recipe.model.max_seq_length, dtype), device, dtype)
    keep_weights_differentiable(model)
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.target_modules), task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, config)
    if recipe.model.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return TransformersPolicy(
        model,
        AutoTokenizer.from_pretrained(resolve_name("builtin:tiny")),
        temperature=recipe.rollout.temperature,
        max_seq_length=recipe.model.max_seq_length,
    )


def _empty(shape: ModelShape, positions: int, dtype: torch.dtype) -> Any:
    """The architecture without memory: LLaMA, or Qwen2 where embeddings are tied."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": shape.vocabulary, "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "max_position_embeddings": positions, "tie_word_embeddings": shape.tied,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "dtype": dtype, "attn_implementation": "sdpa",
    }  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            return (
                Qwen2ForCausalLM(Qwen2Config(**settings)) if shape.tied else LlamaForCausalLM(LlamaConfig(**settings))
            )
    finally:
        torch.set_default_dtype(before)


def _quantised(model: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Give every weight memory and random values; linear layers of the blocks in NF4 with double quantisation."""
    import bitsandbytes as bnb

    for block in model.model.layers:
        for name, layer in [(n, m) for n, m in block.named_modules() if isinstance(m, torch.nn.Linear)]:
            four_bit = bnb.nn.Linear4bit(
                layer.in_features, layer.out_features, bias=layer.bias is not None, compute_dtype=dtype,
                compress_statistics=True, quant_type="nf4", device="meta",
            )  # fmt: skip
            drawn = torch.randn(layer.out_features, layer.in_features, dtype=dtype, device=device) * _SCALE
            weight = bnb.nn.Params4bit(drawn, requires_grad=False, compress_statistics=True, quant_type="nf4")
            four_bit.weight = weight.to(device)
            if layer.bias is not None:
                four_bit.bias = torch.nn.Parameter(torch.zeros(layer.out_features, dtype=dtype, device=device))
            parent, _, leaf = name.rpartition(".")
            setattr(block.get_submodule(parent), leaf, four_bit)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.device.type == "meta":
                values = torch.empty(parameter.shape, dtype=dtype, device=device)
                values.fill_(1.0) if values.dim() == 1 else values.normal_(std=_SCALE)
                module.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))
    model.tie_weights()
    rotary = type(model.model.rotary_emb)
    model.model.rotary_emb = rotary(model.config).to(device)
    model.is_loaded_in_4bit = True  # PEFT asks
    model.requires_grad_(requires_grad=False)
    return model
