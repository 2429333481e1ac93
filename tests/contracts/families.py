"""Families of models that people bring, each as a tiny random model with the built-in tokenizer."""

from __future__ import annotations

from typing import Any

import torch
from small_models import tiny_tokenizer

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DELTA = {"num_hidden_layers": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
          "linear_value_head_dim": 8}  # fmt: skip
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
_SCALES = {"embedding_multiplier": 1.0, "attention_multiplier": 0.25, "residual_multiplier": 1.0, "logits_scaling": 1.0}
_SEES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
         "patch_size": 14}  # fmt: skip
# The name in the documentation: transformers' name and what differs from a small LLaMA. Windows are shorter than a
# completion, so that layers with one forget.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 3": ("llama", {}),
    "Mistral": ("mistral", {"sliding_window": 8}),
    "Qwen2.5": ("qwen2", {}),
    "Qwen3": ("qwen3", {}),
    "Qwen3 MoE": ("qwen3_moe", _EXPERTS),
    "Qwen3-Next": ("qwen3_next", _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 32}),
    "Qwen3.5": ("qwen3_5_text", _DELTA),
    "Gemma 3, text": ("gemma3_text", {"num_hidden_layers": 6, "sliding_window": 8}),
    "Gemma 3, text and images": ("gemma3", {"vision_config": _SEES, "mm_tokens_per_image": 4}),
    "Phi-3": ("phi3", {}),
    "SmolLM3": ("smollm3", {"num_hidden_layers": 4}),
    "OLMo 2": ("olmo2", {}),
    "OLMo 3": ("olmo3", {"num_hidden_layers": 4, "sliding_window": 8}),
    "gpt-oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}),
    "LFM2": ("lfm2", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "Granite 4": ("granitemoehybrid", _MAMBA | _SCALES | {"layer_types": ["mamba", "attention"], "num_local_experts": 4,
                  "num_experts_per_tok": 2, "shared_intermediate_size": 32}),
    "Bamba": ("bamba", _MAMBA | {"attn_layer_indices": [1]}),
    "Falcon-H1": ("falcon_h1", _MAMBA | {"mamba_d_ssm": 128}),
    "Mamba-2": ("mamba2", {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 16}),
}  # fmt: skip
# Families that gtpo refuses, because transformers cannot continue prompts of unequal length side by side.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "RWKV": ("rwkv", {"attention_hidden_size": 64, "context_length": 256}),
    "MiniMax": ("minimax", {"num_local_experts": 4, "block_size": 16}),
    "BART": ("bart", {"d_model": 64, "encoder_layers": 1, "decoder_layers": 2, "decoder_attention_heads": 4}),
}


def family_model(family: str, *, seed: int = 0, **changes: Any) -> tuple[Any, Any]:
    """(model, tokenizer): width 64; weights large enough that distributions are far from uniform."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, differs = (FAMILIES | REFUSED)[family]
    tokenizer = tiny_tokenizer()
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
        "tie_word_embeddings": True, "initializer_range": 0.2, **ends,
    }  # fmt: skip
    settings = ends | {"text_config": text} if "vision_config" in differs else text
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings | differs | changes)).eval()
    with torch.no_grad():  # some families begin with weights too small to tell tokens apart
        for parameter in model.parameters():
            if parameter.dim() >= 2 and float(parameter.std()) < 0.05:
                torch.nn.init.normal_(parameter, std=0.2)
    return model, tokenizer
