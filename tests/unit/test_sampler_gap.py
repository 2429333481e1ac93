"""scripts/measure/sampler_gap.py: its arithmetic by hand, and a sample of the built-in model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jobs import policy_of, sampler_of, training_job_of
from sampler_gap import row, sample_tokens

from gtpo_cli.recipe import load_recipe
from gtpo_cli.types import Completion, Group, Problem


def test_a_row_by_hand() -> None:
    """Of three tokens pi / q is 0.6 / 0.5 = 1.2; 0.5 / 0.2 = 2.5, which is cut at 2; and 1."""
    rows = tuple(
        Completion(tuple(range(len(q))), tuple(torch.tensor(q).log().tolist()), "stop", "") for q in ([0.5, 0.2], [0.7])
    )
    pi = torch.tensor([[0.6, 0.5], [0.7, 0.9]]).log()  # the last is padding
    policy: Any = SimpleNamespace(device="cpu", token_logprobs=lambda batch: (pi, None))
    # ln 1.2 = 0.182 and ln 2.5 = 0.916, so the mean is 0.366; sqrt((0.2^2 + 1^2 + 0) / 3) = 0.589
    expected = "| vllm | policy | 3 | 0.37 | 0.92 | 1 | 2 | 0.33 | 0.59 |"
    assert row("vllm", "policy", policy, [Group(Problem("p", "q", "1"), (1, 2), rows)]) == expected


def test_transformers_samples_from_the_policy_itself() -> None:
    recipe = load_recipe("tiny_arithmetic", ["rollout.prompts_per_step=2", "data.limit=16", "seed=1"])
    policy = policy_of(recipe)
    groups = sample_tokens(sampler_of(policy, recipe), training_job_of(recipe), 1)
    assert [len(group.completions) for group in groups] == [8, 8]
    figures = row("transformers", "transformers", policy, groups).strip("| ").split(" | ")
    assert float(figures[4]) < 1e-4  # the largest gap
    assert [float(w) for w in figures[5:]] == pytest.approx([1, 1, 0, 0], abs=1e-4)
