"""The sampler: right distribution, right log-probabilities, right ends. Real models with random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import random_model

from gtpo_cli.errors import GenerationError
from gtpo_cli.generation import SamplingParams
from gtpo_cli.generation.transformers_sampler import TransformersSampler
from gtpo_cli.models.transformers_policy import TransformersPolicy
from gtpo_cli.rollout import collate
from gtpo_cli.types import Completion, Group, Problem

SHORT, LONG = (1, 4, 20, 21, 5), (1, 4, 30, 31, 32, 33, 34, 35, 36, 5)


def make(architecture: str = "llama", *, temperature: float = 1.0, max_seq_length: int = 256, **changes: Any):
    model, tokenizer = random_model(architecture, **changes)
    policy = TransformersPolicy(model, tokenizer, temperature=temperature, max_seq_length=max_seq_length)
    return policy, TransformersSampler(policy)


def gap(policy: TransformersPolicy, prompts: list[tuple[int, ...]], rows: list[list[Completion]]) -> float:
    """Largest difference, relative to 1 + |logp|, of what the sampler reported and what the policy says now."""
    groups = [Group(Problem("p", "q", "1"), ids, tuple(row)) for ids, row in zip(prompts, rows, strict=True)]
    batch = collate(groups)
    logp = policy.token_logprobs(batch)[0].detach()
    difference = (logp - batch.sampled_logprobs_BGT).abs() / (1 + logp.abs())
    return float(difference[batch.completion_mask_BGT].max())


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_policys_also_with_padded_prompts_and_dropped_rows(
    architecture: str, temperature: float
) -> None:
    policy, sampler = make(architecture, temperature=temperature)
    prompts = [SHORT, LONG, SHORT]
    rows = sampler.sample(prompts, 8, SamplingParams(temperature=temperature, max_completion_tokens=40, seed=3))
    assert [len(row) for row in rows] == [8, 8, 8]
    lengths = {len(completion.token_ids) for row in rows for completion in row}
    assert len(lengths) > 3  # rows end at different steps, so rows were dropped on the way
    assert gap(policy, prompts, rows) < 1e-5


def test_after_an_update_the_sampler_follows_the_policy() -> None:
    policy, sampler = make()
    params = SamplingParams(max_completion_tokens=12, seed=1)
    before = sampler.sample([SHORT], 4, params)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.02 * torch.randn_like(parameter, generator=None))
    assert gap(policy, [SHORT], before) > 1e-3
    sampler.sync(policy)
    assert gap(policy, [SHORT], sampler.sample([SHORT], 4, params)) < 1e-5


def test_equal_seeds_repeat_and_different_ones_do_not() -> None:
    _, sampler = make()
    first, again, other = (
        sampler.sample([SHORT, LONG], 4, SamplingParams(max_completion_tokens=16, seed=seed)) for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


@torch.no_grad()
def expected_first_token(policy: TransformersPolicy, *, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """The distribution of the first token, by definition: temperature, then the k likeliest, then the nucleus."""
    logits = policy.model(input_ids=torch.tensor([SHORT])).logits[0, -1].double() / temperature
    p = torch.softmax(logits, dim=-1)
    order = p.argsort(descending=True).tolist()
    kept = order[:top_k] if top_k else order
    total = sum(float(p[i]) for i in kept)
    nucleus, mass = [], 0.0
    for i in kept:
        if mass >= top_p:
            break
        nucleus.append(i)
        mass += float(p[i]) / total
    result = torch.zeros_like(p)
    result[nucleus] = p[nucleus]
    return result / result.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (1.7, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.8), (0.8, 12, 0.9)]
)
def test_first_tokens_follow_the_distribution(temperature: float, top_k: int, top_p: float) -> None:
    policy, sampler = make(temperature=temperature)
    draws = 4000
    params = SamplingParams(temperature, top_p, top_k, max_completion_tokens=1, seed=11)
    rows = sampler.sample([SHORT], draws, params)[0]
    counts = torch.bincount(torch.tensor([row.token_ids[0] for row in rows]), minlength=len(policy.tokenizer)).double()
    expected = draws * expected_first_token(policy, temperature=temperature, top_k=top_k, top_p=top_p)
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    predicted = torch.cat([expected[common], expected[~common].sum()[None]])
    present = predicted > 0
    statistic = float(((observed - predicted)[present] ** 2 / predicted[present]).sum())
    freedom = int(present.sum()) - 1
    # chi-square: mean `freedom`, variance 2 * freedom; five standard deviations with a fixed seed
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def test_logprobs_are_those_before_top_k_and_top_p() -> None:
    policy, sampler = make()
    rows = sampler.sample([SHORT], 16, SamplingParams(top_k=3, top_p=0.9, max_completion_tokens=8, seed=2))
    assert gap(policy, [SHORT], rows) < 1e-5


def test_almost_greedy_equals_generate() -> None:
    policy, sampler = make()
    expected = policy.model.generate(
        torch.tensor([LONG]), do_sample=False, max_new_tokens=24, eos_token_id=2, pad_token_id=0
    )[0, len(LONG) :].tolist()
    params = SamplingParams(temperature=1e-5, max_completion_tokens=24)
    assert list(sampler.sample([SHORT, LONG], 2, params)[1][0].token_ids) == expected


def test_rows_end_at_any_end_of_sequence_id_and_only_there() -> None:
    policy, sampler = make()
    common = [int(i) for i in expected_first_token(policy, temperature=1.0, top_k=0, top_p=1.0).topk(6).indices]
    policy.eos_token_ids = frozenset({2, *common[:3]})
    rows = sampler.sample([SHORT, LONG], 64, SamplingParams(max_completion_tokens=10, seed=4))
    completions = [completion for row in rows for completion in row]
    ends = {c.token_ids[-1] for c in completions if c.finish_reason == "stop"}
    assert len(ends & set(common[:3])) >= 2
    for completion in completions:
        assert not policy.eos_token_ids & set(completion.token_ids[:-1])
        if completion.finish_reason == "stop":
            assert completion.token_ids[-1] in policy.eos_token_ids
            assert not completion.truncated
        else:
            assert len(completion.token_ids) == 10
            assert completion.token_ids[-1] not in policy.eos_token_ids
            assert completion.truncated


def test_the_context_bounds_each_row_by_its_own_prompt() -> None:
    policy, sampler = make(max_seq_length=16)
    policy.eos_token_ids = frozenset({99999})  # never: every row runs to its limit
    short, long = sampler.sample([SHORT, LONG], 2, SamplingParams(max_completion_tokens=100))
    assert {len(c.token_ids) for c in short} == {16 - len(SHORT)}
    assert {len(c.token_ids) for c in long} == {16 - len(LONG)}


def test_the_prompt_of_a_group_is_encoded_once() -> None:
    policy, sampler = make()
    seen: list[tuple[int, ...]] = []
    hook = policy.backbone.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    sampler.sample([SHORT, LONG], 8, SamplingParams(max_completion_tokens=3))
    hook.remove()
    assert seen[0] == (2, len(LONG))  # two prompts, not sixteen
    assert all(shape[1] == 1 for shape in seen[1:])


def test_many_completions_are_cut_into_blocks_in_order() -> None:
    policy, _ = make()
    sampler = TransformersSampler(policy, max_rows=5)
    rows = sampler.sample([SHORT, LONG, SHORT], 7, SamplingParams(max_completion_tokens=4, seed=1))
    assert [len(row) for row in rows] == [7, 7, 7]
    assert gap(policy, [SHORT, LONG, SHORT], rows) < 1e-5


def test_text_is_decoded_without_special_tokens() -> None:
    policy, sampler = make()
    row = sampler.sample([SHORT], 1, SamplingParams(max_completion_tokens=20))[0][0]
    assert row.text == policy.tokenizer.decode(row.token_ids, skip_special_tokens=True)
    assert "</s>" not in row.text


def test_prompts_that_leave_no_room_are_refused() -> None:
    _, sampler = make(max_seq_length=10)
    with pytest.raises(GenerationError, match="prompt 1 has 10 tokens"):
        sampler.sample([SHORT, LONG], 1, SamplingParams())
    with pytest.raises(GenerationError, match="prompt 0 is empty"):
        sampler.sample([()], 1, SamplingParams())


def test_broken_weights_are_an_error_and_not_an_endless_sentence() -> None:
    policy, sampler = make()
    with torch.no_grad():
        policy.model.get_output_embeddings().weight[3] = float("nan")
    with pytest.raises(GenerationError, match="not finite"):
        sampler.sample([SHORT], 1, SamplingParams())
