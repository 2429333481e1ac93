"""Small real models of the architectures gtpo is for, with random weights and the built-in tokenizer."""

from __future__ import annotations

from typing import Any

import torch

from gtpo_cli.policy.tiny import resolve_name

BUILTIN_SHAPE = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 2,
                 "num_key_value_heads": 2, "max_position_embeddings": 2048, "tie_word_embeddings": True}  # fmt: skip


def tiny_tokenizer() -> Any:
    """That of the built-in model: it reads characters."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve_name("builtin:tiny"))


def random_model(architecture: str = "llama", *, seed: int = 0, **changes: Any) -> tuple[Any, Any]:
    """(model, tokenizer): 2 layers, width 64; weights large enough that distributions are far from uniform."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = tiny_tokenizer()
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **settings)), tokenizer


PLAIN = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"], "task_type": "CAUSAL_LM"}


def adapted(model: Any, **changes: Any) -> Any:
    """The model with an adapter that changes it, by PEFT."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(**PLAIN | changes))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model
