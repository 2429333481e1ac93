"""The type that a vLLM engine beside the policy is started with, and what is said where it has no room. What the engine
does: tests/vllm."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from jobs import policy_of
from policy_contract import recipe_for, save_model

from gtpo_cli.errors import GenerationError
from gtpo_cli.policy.loading import dtype_name
from gtpo_cli.policy.vllm_sampler import SharedEngine


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_that_of_the_base_and_not_of_the_adapter(tmp_path: Path, dtype: str) -> None:
    """The adapter trains in float32 on a base in 16 bits: an engine in float32 would take twice the memory."""
    policy = policy_of(recipe_for(save_model(tmp_path), dtype=dtype))
    assert {parameter.dtype for parameter in policy.trainable_parameters()} == {torch.float32}
    assert dtype_name(policy.dtype) == dtype


def test_no_room_for_the_engine_names_remedies_that_help_in_an_evaluation_too() -> None:
    def no_room(*_: object) -> None:
        raise RuntimeError("CUDA Error: out of memory at cumem_allocator.cpp:139")

    llm = SimpleNamespace(
        vllm_config=SimpleNamespace(model_config=SimpleNamespace(enable_sleep_mode=True)),
        remove_lora=lambda number: None,
    )
    engine = SharedEngine(
        SimpleNamespace(vllm_engine=SimpleNamespace(llm_engine=llm, sleep=lambda level: None, wake_up=no_room))
    )
    engine._adapter = SimpleNamespace(lora_int_id=1)
    with pytest.raises(GenerationError) as caught:
        list(engine.generate([]))
    assert "cumem_allocator.cpp:139); lower it, or stop other programs that use the GPU" in str(caught.value)
    assert "training" not in str(caught.value)
