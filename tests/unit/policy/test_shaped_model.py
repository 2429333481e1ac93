"""The random model of the GPU tests and benchmark, small and on a CPU: so that they run where a GPU is lent."""

from __future__ import annotations

from dataclasses import replace

import gpu
import pytest
import torch
from shaped_model import shaped_policy
from shaped_steps import steps_of

from gtpo_cli.machine.shapes import ModelShape
from gtpo_cli.policy.transformers_policy import TransformersPolicy

pytest.importorskip("bitsandbytes", reason="4-bit weights need the extra bnb")


def policy_of(shape: ModelShape) -> TransformersPolicy:
    return shaped_policy(shape, gpu.recipe_for("small"), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("tied", [False, True], ids=["llama", "qwen2"])
def test_steps_train_the_adapter_and_nothing_else(tied: bool) -> None:
    policy = policy_of(replace(gpu.SMALL, tied=tied))
    kinds = {type(module).__name__ for module in policy.model.modules()}
    assert "Linear4bit" in kinds
    assert ("Qwen2DecoderLayer" in kinds) == tied
    steps_of(policy, steps=2, completion=8)


def test_the_two_paths_that_the_benchmark_times_compute_the_same() -> None:
    policy = policy_of(gpu.SMALL)
    batch = gpu.full_rows(policy, gpu.Case("small", 3, 7, 5))
    gradients = []
    for path in (policy.token_logprobs, lambda batch: gpu.full_logits(policy, batch)):
        logp, entropy = path(batch)
        logp.sum().backward()
        gradients.append([parameter.grad.clone() for parameter in policy.trainable_parameters()])
        policy.model.zero_grad()
        if len(gradients) == 1:
            expected = (logp.detach(), entropy)
    torch.testing.assert_close(logp.detach(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, expected[1], rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
