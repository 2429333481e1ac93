"""The sampler on a real vLLM engine (the third-party CPU build) beside a transformers policy.

`make test-vllm` runs this in an environment of its own; elsewhere it is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not here: make test-vllm"),
]

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from small_models import random_model  # noqa: E402 - after the path is set

from gtpo_cli.errors import GenerationError  # noqa: E402
from gtpo_cli.generation import Sampler, SamplingParams, load_sampler  # noqa: E402
from gtpo_cli.models import load_policy  # noqa: E402
from gtpo_cli.recipe import Recipe, build_recipe  # noqa: E402
from gtpo_cli.rollout import collate  # noqa: E402
from gtpo_cli.types import Group, Problem  # noqa: E402

LORA = {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
PROMPTS = [(1, 4, 20, 21, 5), (1, 4, 30, 31, 32, 33, 34, 5)]


def recipe_for(folder: Path, **rollout: Any) -> Recipe:
    model = {"name": str(folder), "load_in_4bit": False, "lora": LORA, "max_seq_length": 64, "dtype": "float32",
             "gradient_checkpointing": False}  # fmt: skip
    data = {"benchmark": "arithmetic", "max_prompt_tokens": 32}
    return build_recipe({"model": model, "data": data, "rollout": {"engine": "vllm"} | rollout}, where="test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaMA; vLLM's attention on a CPU takes heads of 32 and more."""
    path: Path = tmp_path_factory.mktemp("model")
    model, tokenizer = random_model("llama", initializer_range=0.1, num_attention_heads=2, num_key_value_heads=1)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def policy(folder: Path) -> Any:
    """A policy whose adapter is not zero."""
    policy = load_policy(recipe_for(folder))
    move(policy, seed=0)
    return policy


@pytest.fixture(scope="module")
def sampler(policy: Any, folder: Path) -> Sampler:
    return load_sampler(policy, recipe_for(folder))


def move(policy: Any, *, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def gap(policy: Any, rows: list[list[Any]]) -> float:
    """Largest difference between the sampler's and the policy's log-probabilities."""
    groups = [Group(Problem("p", "q", "1"), p, tuple(row)) for p, row in zip(PROMPTS, rows, strict=True)]
    batch = collate(groups)
    with torch.no_grad():
        logp, _ = policy.token_logprobs(batch)
    return float((logp - batch.sampled_logprobs_BGT).abs().max())


def test_logprobs_are_the_policys_and_follow_its_updates(policy: Any, sampler: Sampler) -> None:
    sampler.sync(policy)
    before = sampler.sample(PROMPTS, 4, SamplingParams(max_completion_tokens=16, seed=1))
    assert gap(policy, before) < 1e-4
    optimizer = torch.optim.AdamW(list(policy.trainable_parameters()), lr=0.05)
    batch = collate([Group(Problem("p", "q", "1"), p, tuple(row)) for p, row in zip(PROMPTS, before, strict=True)])
    policy.token_logprobs(batch)[0].sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert gap(policy, before) > 1e-2  # the old completions no longer are the policy's
    sampler.sync(policy)
    after = sampler.sample(PROMPTS, 4, SamplingParams(max_completion_tokens=16, seed=1))
    assert gap(policy, after) < 1e-4


def test_n_seeds_and_lengths(policy: Any, sampler: Sampler) -> None:
    params = SamplingParams(max_completion_tokens=10, seed=7)
    rows = sampler.sample(PROMPTS, 5, params)
    assert [len(row) for row in rows] == [5, 5]
    assert rows == sampler.sample(PROMPTS, 5, params)
    assert rows != sampler.sample(PROMPTS, 5, SamplingParams(max_completion_tokens=10, seed=8))
    assert len({completion.token_ids for row in rows for completion in row}) > 5
    for completion in (completion for row in rows for completion in row):
        stopped = completion.token_ids[-1] in policy.eos_token_ids
        assert completion.finish_reason == ("stop" if stopped else "length")
        assert len(completion.token_ids) == 10 or stopped
        assert completion.text == policy.tokenizer.decode(completion.token_ids, skip_special_tokens=True)


def test_every_end_of_sequence_id_ends_a_completion(policy: Any, sampler: Sampler) -> None:
    before = policy.eos_token_ids
    policy.eos_token_ids = frozenset(range(2, 40))
    try:
        rows = sampler.sample(PROMPTS, 20, SamplingParams(max_completion_tokens=30, seed=2))
    finally:
        policy.eos_token_ids = before
    for completion in (completion for row in rows for completion in row):
        *inner, last = completion.token_ids
        assert not any(2 <= token < 40 for token in inner)
        assert (2 <= last < 40) == (completion.finish_reason == "stop")
    assert sum(completion.finish_reason == "stop" for row in rows for completion in row) > 30


def test_first_tokens_follow_the_distribution(policy: Any, sampler: Sampler) -> None:
    sampler.sync(policy)
    (row,) = sampler.sample(PROMPTS[:1], 2000, SamplingParams(max_completion_tokens=1, seed=3))
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1].double()
    expected = torch.softmax(logits, -1) * 2000
    counts = Counter(completion.token_ids[0] for completion in row)
    common = [token for token in range(len(expected)) if expected[token] >= 5]
    rest = 2000 - sum(counts[token] for token in common)
    chi = sum((counts[token] - float(expected[token])) ** 2 / float(expected[token]) for token in common)
    other = float(expected.sum()) - sum(float(expected[token]) for token in common)
    chi += (rest - other) ** 2 / max(other, 1.0)
    freedom = len(common)
    assert chi < freedom + 4 * math.sqrt(2 * freedom)  # four standard deviations of chi-square


def test_prompts_that_leave_no_room_are_refused(sampler: Sampler) -> None:
    with pytest.raises(GenerationError, match="prompt 1 has 64 tokens, which leaves no room within 64"):
        sampler.sample([(1, 4), tuple(range(8, 72))], 1, SamplingParams())
    with pytest.raises(GenerationError, match="prompt 0 is empty"):
        sampler.sample([()], 1, SamplingParams())
    (row,) = sampler.sample([tuple(range(8, 68))], 1, SamplingParams(max_completion_tokens=50))
    assert len(row[0].token_ids) <= 4  # the context has 64 places


def test_the_demo_learns_with_vllm(tmp_path: Path) -> None:
    """The built-in model with an adapter: sampled by vLLM, trained by us."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "gtpo"), "train", "-q", "--recipe", "tiny_arithmetic",
         "--set", "rollout.engine=vllm", "--set", "run_name=vllm", "--set", "training.max_steps=60",
         "--set", "model.lora={rank: 16, alpha: 16}", "--set", "model.dtype=float32",
         "--set", "optimizer.learning_rate=2.0e-3", "--set", "objective.probe.num_prompts=16"],
        cwd=tmp_path, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in (tmp_path / "runs" / "vllm" / "metrics.jsonl").read_text().splitlines()]
    first, last = (sum(row["train/accuracy_rate"] for row in part) / 10 for part in (rows[:10], rows[-10:]))
    assert last > first + 0.15
    assert max(row["sampler/gap_max"] for row in rows) < 1e-3
