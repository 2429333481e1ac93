"""Policies and samplers on a GPU: the same contracts as on a CPU, and the same numbers."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import policy_of, sampler_of
from policy_contract import PolicyContract, move, ragged_rows, recipe_for, save_model
from sampler_contract import CONTEXT, SamplerContract

from gtpo_cli.policy.transformers_policy import TransformersPolicy

NEEDS_VLLM = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
NEEDS_UNSLOTH = pytest.mark.skipif(importlib.util.find_spec("unsloth") is None, reason="Unsloth is not installed here")
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.1}  # head width 32, for vLLM


class TestTransformersPolicy(PolicyContract):
    backend = "transformers"


class TestTransformersSampler(SamplerContract):
    @pytest.fixture
    def pair(self, tmp_path: Path) -> tuple[Any, Any]:
        recipe = recipe_for(save_model(tmp_path), backend="transformers", max_seq_length=CONTEXT)
        policy = policy_of(recipe)
        assert policy.device.type == "cuda"
        move(policy)
        return policy, sampler_of(policy, recipe)


@NEEDS_VLLM
@NEEDS_UNSLOTH
class TestUnslothsSharedEngine(SamplerContract):
    """Weights in 16 bits: the engine's arithmetic is not the policy's to the last digit."""

    tolerance = 3e-2
    moved = 0.3

    @pytest.fixture(scope="class")
    def pair(self, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
        folder = save_model(tmp_path_factory.mktemp("model"), **HEADS)
        rollout = {"engine": "vllm", "gpu_memory_utilization": 0.2}
        recipe = recipe_for(folder, rollout=rollout, backend="unsloth", max_seq_length=CONTEXT, dtype="bfloat16")
        policy = policy_of(recipe)
        assert policy.shares_engine
        move(policy)
        return policy, sampler_of(policy, recipe)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_gradients_are_those_of_the_cpu(tmp_path: Path, architecture: str) -> None:
    """Float32 on both: log-probabilities, entropies and every gradient of the adapter."""
    policy = policy_of(recipe_for(save_model(tmp_path, architecture), backend="transformers"))
    move(policy)
    twin = TransformersPolicy(
        copy.deepcopy(policy.model).cpu(), policy.tokenizer, temperature=1.0, max_seq_length=policy.max_seq_length
    )
    results = []
    for each in (policy, twin):
        logp, entropy = each.token_logprobs(ragged_rows(each.device))
        weights = torch.linspace(-1, 1, logp.numel(), device=logp.device).view(logp.shape)
        (logp * weights).sum().backward()
        gradients = [parameter.grad.cpu() for parameter in each.trainable_parameters()]
        results.append((logp.detach().cpu(), entropy.cpu(), gradients))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(results[0][2], results[1][2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@NEEDS_VLLM
@NEEDS_UNSLOTH
def test_unsloths_kernels_are_near_transformers(tmp_path: Path) -> None:
    """In 16 bits, on the same weights: log-probabilities, and gradients by their direction."""
    folder = save_model(tmp_path / "model", **HEADS)
    unsloth = policy_of(recipe_for(folder, backend="unsloth", dtype="bfloat16"), with_engine=False)  # one a process
    move(unsloth)
    unsloth.save(tmp_path / "adapter")
    plain = policy_of(recipe_for(folder, backend="transformers", dtype="bfloat16"))
    plain.load(tmp_path / "adapter")
    gradients = []
    logps = []
    for policy in (unsloth, plain):
        logp, _ = policy.token_logprobs(ragged_rows(policy.device))
        logp.sum().backward()
        logps.append(logp.detach())
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in policy.trainable_parameters()]))
    torch.testing.assert_close(logps[0], logps[1], rtol=3e-2, atol=3e-2)
    assert torch.cosine_similarity(gradients[0].float(), gradients[1].float(), dim=0) > 0.99


@NEEDS_VLLM
class TestPlainVllm(SamplerContract):
    """In 16 bits: LoRA kernels for GPUs take nothing else. Last, since on the one card so far it came to no end."""

    tolerance = 3e-2
    moved = 0.3

    @pytest.fixture(scope="class")
    def pair(self, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
        folder = save_model(tmp_path_factory.mktemp("model"), **HEADS)
        rollout = {"engine": "vllm", "gpu_memory_utilization": 0.2, "vllm": {"enforce_eager": True}}
        recipe = recipe_for(folder, rollout=rollout, backend="transformers", max_seq_length=CONTEXT, dtype="bfloat16")
        policy = policy_of(recipe)
        move(policy)
        return policy, sampler_of(policy, recipe)
