"""The type that a vLLM engine beside the policy is started with. What the engine does: tests/vllm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from policy_contract import recipe_for, save_model

from gtpo_cli.generation.vllm_sampler import _dtype
from gtpo_cli.models import load_policy


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_that_of_the_base_and_not_of_the_adapter(tmp_path: Path, dtype: str) -> None:
    """The adapter trains in float32 on a base in 16 bits: an engine in float32 would take twice the memory."""
    policy = load_policy(recipe_for(save_model(tmp_path), dtype=dtype))
    assert {parameter.dtype for parameter in policy.trainable_parameters()} == {torch.float32}
    assert _dtype(policy) == dtype
