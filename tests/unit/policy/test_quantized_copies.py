"""Weights that are stored in 4 bits, as in Unsloth's copies, are those that we quantise ourselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from policy_contract import ragged_rows, recipe_for, save_model

from gtpo_cli.errors import ModelError
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy.loading import nf4_config, read_model
from gtpo_cli.policy.transformers_policy import load_transformers_policy


def test_a_copy_stored_in_4_bits_gives_the_same_policy(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="4-bit weights need the extra bnb")
    from transformers import AutoModelForCausalLM

    whole = save_model(tmp_path / "whole", "llama", hidden_size=128)
    copy = save_model(tmp_path / "copy", "llama", hidden_size=128)
    config = nf4_config(torch.float32)
    model = AutoModelForCausalLM.from_pretrained(whole, quantization_config=config, dtype=torch.float32)
    (copy / "model.safetensors").unlink()
    model.save_pretrained(copy)
    recipes = [recipe_for(path, load_in_4bit=True, dtype="float32") for path in (whole, copy)]
    both = [recipe.model for recipe in recipes]
    policies = [
        load_transformers_policy(
            recipe, files=read_model(recipe, recipe.name), temperature=1.0, with_reference=False, seed=1
        )
        for recipe in both
    ]
    batch = ragged_rows()
    ours, theirs = (policy.token_logprobs(batch)[0] for policy in policies)
    assert torch.equal(ours, theirs)
    assert [Parts(recipe).shape_and_source[0].quantized for recipe in recipes] == [False, True]
    whole_weights = recipe_for(copy, load_in_4bit=False, lora=None, dtype="float32").model
    with pytest.raises(
        ModelError, match=r"the weights of .*copy are quantised, and such weights cannot train; set model"
    ):
        load_transformers_policy(
            whole_weights, files=read_model(whole_weights, str(copy)), temperature=1.0, with_reference=False, seed=1
        )
