"""The policy on the real Unsloth (its CPU backend) against the transformers policy on the same weights.

`make test-unsloth` runs this in an environment of its own; elsewhere it is skipped.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import policy_of, sampler_of
from policy_contract import LORA, PolicyContract, move, ragged_rows, recipe_for, save_model
from safetensors.torch import load_file, save_file
from sampler_contract import CONTEXT, SamplerContract

from gtpo_cli.errors import ModelError
from gtpo_cli.policy import unsloth_policy
from gtpo_cli.policy.engines import choose_engines, installed_libraries

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("unsloth") is None, reason="Unsloth is not here: make test-unsloth"
)


@pytest.fixture(scope="module", autouse=True)
def _unsloth() -> None:
    """Unsloth collects garbage with every model: of what it imported there is none, and it takes a second."""
    unsloth_policy._fast_language_model()
    gc.freeze()


class TestPolicyContract(PolicyContract):
    backend = "unsloth"


class TestSamplerContract(SamplerContract):
    """The transformers sampler on a policy that Unsloth holds."""

    @pytest.fixture
    def pair(self, tmp_path: Path) -> tuple[Any, Any]:
        recipe = recipe_for(save_model(tmp_path), backend="unsloth", max_seq_length=CONTEXT)
        policy = policy_of(recipe)
        move(policy)
        return policy, sampler_of(policy, recipe)


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp(request.param), request.param)


def policies(folder: Path, tmp_path: Path, **model: Any) -> tuple[Any, Any]:
    """An Unsloth policy and a transformers policy with the same adapter, which is not zero."""
    rollout = {"temperature": 0.8}
    unsloth = policy_of(recipe_for(folder, rollout=rollout, backend="unsloth", **model))
    move(unsloth)
    unsloth.save(tmp_path / "saved")
    plain = policy_of(recipe_for(folder, rollout=rollout, backend="transformers", **model))
    plain.load(tmp_path / "saved")
    assert (type(unsloth).__name__, type(plain).__name__) == ("UnslothPolicy", "TransformersPolicy")
    return unsloth, plain


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapter", "all weights"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_logprobs_entropies_and_gradients_equal_those_of_the_transformers_policy(
    folder: Path, tmp_path: Path, lora: Any, checkpointing: bool
) -> None:
    unsloth, plain = policies(folder, tmp_path, lora=lora, gradient_checkpointing=checkpointing)
    batch = ragged_rows()
    results = []
    for policy in (unsloth, plain):
        logp, entropy = policy.token_logprobs(batch)
        (logp * torch.linspace(-1, 1, logp.numel()).view(logp.shape)).sum().backward()
        results.append((logp.detach(), entropy, [p.grad.clone() for p in policy.trainable_parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)
    assert len(results[0][2]) == len(results[1][2]) > 0
    for ours, theirs in zip(results[0][2], results[1][2], strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()
        assert ours.abs().sum() > 0


def test_an_adapter_goes_both_ways_between_the_two(folder: Path, tmp_path: Path) -> None:
    unsloth, plain = policies(folder, tmp_path)
    plain.save(tmp_path / "plain")
    with torch.no_grad():
        before = [parameter.clone() for parameter in unsloth.trainable_parameters()]
        for parameter in unsloth.trainable_parameters():
            parameter.zero_()
    unsloth.load(tmp_path / "plain")
    assert all(torch.equal(a, b) for a, b in zip(before, unsloth.trainable_parameters(), strict=True))


def test_four_bits_on_a_cpu(folder: Path, tmp_path: Path) -> None:
    """bitsandbytes' CPU backend: quantised weights, an adapter that gets a gradient, near the transformers policy."""
    unsloth, plain = policies(folder, tmp_path, load_in_4bit=True)
    batch = ragged_rows()
    logp, _ = unsloth.token_logprobs(batch)
    with torch.no_grad():
        expected, _ = plain.token_logprobs(batch)
    torch.testing.assert_close(logp.detach(), expected, rtol=1e-3, atol=1e-3)
    logp.sum().backward()
    assert all(parameter.grad is not None for parameter in unsloth.trainable_parameters())


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"without config\.json"):
        policy_of(recipe_for(tmp_path / "empty", backend="unsloth"))


@pytest.mark.parametrize("load_in_4bit", [False, True])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, load_in_4bit: bool) -> None:
    file = save_model(tmp_path) / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][3] = math.nan
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"are not finite \(.*norm\.weight has NaN or infinity\)"):
        policy_of(recipe_for(tmp_path, backend="unsloth", load_in_4bit=load_in_4bit))


def test_auto_is_transformers_where_no_gpu_is(folder: Path) -> None:
    here: Any = {"gpu": False, "installed": installed_libraries()}
    assert choose_engines(recipe_for(folder), **here) == ("transformers", "transformers", False)
    assert choose_engines(recipe_for(folder, backend="unsloth"), **here) == ("unsloth", "transformers", False)


def test_the_demo_learns_exactly_as_on_transformers(tmp_path: Path) -> None:
    """All weights, same seeds: on a CPU the two backends are the same arithmetic, bit for bit."""
    rows = {}
    for backend in ("unsloth", "transformers"):
        subprocess.run(
            [sys.executable, "-m", "gtpo_cli", "train", "-q", "--recipe", "tiny_arithmetic",
             "--set", f"model.backend={backend}", "--set", f"run_name={backend}", "--set", "training.max_steps=60"],
            cwd=tmp_path, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=True, capture_output=True, timeout=300,
        )  # fmt: skip
        lines = (tmp_path / "runs" / backend / "metrics.jsonl").read_text().splitlines()
        measured = ("time/", "speed/", "memory/")
        rows[backend] = [{k: v for k, v in json.loads(x).items() if not k.startswith(measured)} for x in lines]
    assert rows["unsloth"] == rows["transformers"]
    first, last = (
        sum(row["train/accuracy_rate"] for row in part) / 5 for part in (rows["unsloth"][:5], rows["unsloth"][-5:])
    )
    assert last > first + 0.2
