"""scripts/measure/sampler_gap.py: its arithmetic by hand, and a measurement of the built-in model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jobs import policy_of, sampler_of, training_job_of
from sampler_gap import effect, row, sample_tokens

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


def test_transformers_samples_from_the_policy_itself_and_another_sampler_does_not() -> None:
    recipe = load_recipe("tiny_arithmetic", ["rollout.prompts_per_step=2", "data.limit=16", "seed=1"])
    policy = policy_of(recipe)
    groups = sample_tokens(sampler_of(policy, recipe), training_job_of(recipe), 1)
    assert [len(group.completions) for group in groups] == [8, 8]
    found = effect(policy, recipe, groups, initial_entropy=1.0)
    assert found.change < 1e-4
    assert 0.1 < found.noise < 10
    doubtful = [
        Group(group.problem, group.prompt_ids, tuple(_less_likely(completion) for completion in group.completions))
        for group in groups
    ]  # every w is 1.25, and so is the gradient
    again = effect(policy, recipe, doubtful, initial_entropy=1.0)
    assert again.change == pytest.approx(0.25, abs=1e-3)
    assert again.noise == pytest.approx(found.noise, rel=1e-4)
    halves = [effect(policy, recipe, [group, group], initial_entropy=1.0) for group in doubtful]
    assert [half.agreement for half in halves] == pytest.approx([1, 1], abs=1e-3)


def _less_likely(completion: Completion) -> Completion:
    logprobs = tuple(logprob - float(torch.tensor(1.25).log()) for logprob in completion.logprobs)
    return Completion(completion.token_ids, logprobs, completion.finish_reason, completion.text)
