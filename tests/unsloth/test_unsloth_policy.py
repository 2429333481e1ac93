"""The policy on the real Unsloth (its CPU backend) against the transformers policy on the same weights.

`make test-unsloth` runs this in an environment of its own; elsewhere it is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.unsloth,
    pytest.mark.skipif(importlib.util.find_spec("unsloth") is None, reason="Unsloth is not here: make test-unsloth"),
]

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from small_models import random_model  # noqa: E402 - after the path is set

from gtpo_cli.errors import ModelError  # noqa: E402
from gtpo_cli.generation import SamplingParams, load_sampler  # noqa: E402
from gtpo_cli.models import load_policy  # noqa: E402
from gtpo_cli.objective import TokenBatch  # noqa: E402
from gtpo_cli.recipe import Recipe, build_recipe  # noqa: E402
from gtpo_cli.rollout import collate  # noqa: E402
from gtpo_cli.types import Completion, Group, Problem  # noqa: E402

LORA = {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param)
    model, tokenizer = random_model(request.param)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def recipe(folder: Path, backend: str, **model: Any) -> Recipe:
    settings = {"name": str(folder), "backend": backend, "load_in_4bit": False, "lora": LORA, "max_seq_length": 256,
                "dtype": "float32", "gradient_checkpointing": False}  # fmt: skip
    data = {"benchmark": "arithmetic", "max_prompt_tokens": 64}
    return build_recipe({"model": settings | model, "data": data, "rollout": {"temperature": 0.8}}, where="test")


def policies(folder: Path, tmp_path: Path, **model: Any) -> tuple[Any, Any]:
    """An Unsloth policy and a transformers policy with the same adapter, which is not zero."""
    unsloth = load_policy(recipe(folder, "unsloth", **model))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in unsloth.trainable_parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    unsloth.save_adapter(tmp_path / "saved")
    plain = load_policy(recipe(folder, "transformers", **model))
    plain.load_adapter(tmp_path / "saved")
    assert (type(unsloth).__name__, type(plain).__name__) == ("UnslothPolicy", "TransformersPolicy")
    return unsloth, plain


def ragged_batch() -> TokenBatch:
    groups = []
    for prompt, row in (((1, 4, 20, 21, 5), (9, 1, 4)), ((1, 4, 30, 31, 32, 33, 34, 5), (2, 0, 7))):
        completions = tuple(
            Completion(tuple((7 * k + 3 * n + length) % 90 + 8 for k in range(length)), (0.0,) * length, "stop", "")
            for n, length in enumerate(row)
        )
        groups.append(Group(Problem("p", "q", "1"), prompt, completions))
    return collate(groups)


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapter", "all weights"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_logprobs_entropies_and_gradients_equal_those_of_the_transformers_policy(
    folder: Path, tmp_path: Path, lora: Any, checkpointing: bool
) -> None:
    unsloth, plain = policies(folder, tmp_path, lora=lora, gradient_checkpointing=checkpointing)
    batch = ragged_batch()
    results = []
    for policy in (unsloth, plain):
        logp, entropy = policy.token_logprobs(batch)
        (logp * torch.linspace(-1, 1, logp.numel()).view(logp.shape)).sum().backward()
        results.append((logp.detach(), entropy, [p.grad.clone() for p in policy.trainable_parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)
    assert len(results[0][2]) == len(results[1][2]) > 0
    for ours, theirs in zip(results[0][2], results[1][2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        assert ours.abs().sum() > 0


def test_the_reference_is_the_model_without_its_adapter(folder: Path, tmp_path: Path) -> None:
    unsloth, _ = policies(folder, tmp_path)
    untrained = load_policy(recipe(folder, "transformers"))  # its adapter is still zero
    batch = ragged_batch()
    with torch.no_grad():
        base, _ = untrained.token_logprobs(batch)
        trained, _ = unsloth.token_logprobs(batch)
    torch.testing.assert_close(unsloth.reference_logprobs(batch), base, rtol=1e-5, atol=1e-6)
    assert (trained - base).abs().max() > 1e-3


def test_an_adapter_goes_both_ways_between_the_two(folder: Path, tmp_path: Path) -> None:
    unsloth, plain = policies(folder, tmp_path)
    plain.save_adapter(tmp_path / "plain")
    with torch.no_grad():
        before = [parameter.clone() for parameter in unsloth.trainable_parameters()]
        for parameter in unsloth.trainable_parameters():
            parameter.zero_()
    unsloth.load_adapter(tmp_path / "plain")
    assert all(torch.equal(a, b) for a, b in zip(before, unsloth.trainable_parameters(), strict=True))


def test_sampling_gives_the_policys_own_logprobs_also_after_an_update(folder: Path, tmp_path: Path) -> None:
    unsloth, _ = policies(folder, tmp_path)
    sampler = load_sampler(unsloth, recipe(folder, "unsloth"))
    prompts, params = [(1, 4, 20, 21, 5), (1, 4, 30, 5)], SamplingParams(0.8, max_completion_tokens=12, seed=3)
    optimizer = torch.optim.AdamW(list(unsloth.trainable_parameters()), lr=0.05)
    before = None
    for _ in range(2):
        sampler.sync(unsloth)
        rows = sampler.sample(prompts, 3, params)
        groups = [Group(Problem("p", "q", "1"), p, tuple(row)) for p, row in zip(prompts, rows, strict=True)]
        batch = collate(groups)
        logp, _ = unsloth.token_logprobs(batch)
        torch.testing.assert_close(logp.detach(), batch.sampled_logprobs_BGT, rtol=1e-4, atol=1e-4)
        if before is not None:
            assert (logp.detach().sum() - before).abs() > 1e-2
        before = logp.detach().sum()
        optimizer.zero_grad()
        logp.sum().backward()
        optimizer.step()


def test_four_bits_on_a_cpu(folder: Path, tmp_path: Path) -> None:
    """bitsandbytes' CPU backend: quantised weights, an adapter that gets a gradient, near the transformers policy."""
    unsloth, plain = policies(folder, tmp_path, load_in_4bit=True)
    batch = ragged_batch()
    logp, _ = unsloth.token_logprobs(batch)
    with torch.no_grad():
        expected, _ = plain.token_logprobs(batch)
    torch.testing.assert_close(logp.detach(), expected, rtol=1e-3, atol=1e-3)
    logp.sum().backward()
    assert all(parameter.grad is not None for parameter in unsloth.trainable_parameters())


def test_what_cannot_be_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="4-bit weights cannot train"):
        load_policy(recipe(folder, "unsloth", load_in_4bit=True, lora=None))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"without config\.json"):
        load_policy(recipe(tmp_path / "empty", "unsloth"))


def test_the_demo_learns_exactly_as_on_transformers(tmp_path: Path) -> None:
    """All weights, same seeds: on a CPU the two backends are the same arithmetic, bit for bit."""
    rows = {}
    for backend in ("unsloth", "transformers"):
        subprocess.run(
            [str(Path(sys.executable).parent / "gtpo"), "train", "-q", "--recipe", "tiny_arithmetic",
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
