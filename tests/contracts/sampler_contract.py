"""What holds for every sampler, whatever engine is behind it. A tier subclasses `SamplerContract` and gives `pair`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from gtpo_cli.errors import GenerationError
from gtpo_cli.policy.sampler import Sampler, SamplingParams, collate
from gtpo_cli.types import Completion, Group, Problem

SHORT, LONG = (1, 4, 20, 21, 5), (1, 4, 30, 31, 32, 33, 34, 35, 36, 5)
PROMPTS = [SHORT, LONG]
CONTEXT = 64  # max_seq_length of the pair's policy


def gap(policy: Any, prompts: list[tuple[int, ...]], rows: list[list[Completion]]) -> float:
    """Largest difference, relative to 1 + |logp|, of what the sampler reported and what the policy says now."""
    groups = [Group(Problem("p", "q", "1"), ids, tuple(row)) for ids, row in zip(prompts, rows, strict=True)]
    sampled = collate(groups, device=policy.device)
    with torch.no_grad():
        logp, _ = policy.token_logprobs(sampled)
    difference = (logp - sampled.sampled_NT).abs() / (1 + logp.abs())
    return float(difference[sampled.mask_NT].max())


@torch.no_grad()
def first_token(policy: Any, *, top_p: float = 1.0) -> torch.Tensor:
    """Distribution of the first token after SHORT, by definition: temperature, then the nucleus."""
    logits = policy.model(input_ids=torch.tensor([SHORT], device=policy.device)).logits[0, -1].double().cpu()
    p = torch.softmax(logits / policy.temperature, dim=-1)
    order = p.argsort(descending=True).tolist()
    nucleus, mass = [], 0.0
    for i in order:
        if mass >= top_p:
            break
        nucleus.append(i)
        mass += float(p[i])
    result = torch.zeros_like(p)
    result[nucleus] = p[nucleus]
    return result / result.sum()


def clear_top_p(p: torch.Tensor) -> float:
    """A top-p between 0.5 and 0.9 whose nucleus is the same for a sampler that rounds to 16 bits.

    It ends before the largest fall from one likely token to the next, and lies in the middle of its last token.
    """
    sorted_p = p.sort(descending=True).values
    before = sorted_p.cumsum(dim=0) - sorted_p
    middle = before + sorted_p / 2
    fall = sorted_p[:-1] / sorted_p[1:]
    fall[(middle[:-1] < 0.5) | (middle[:-1] > 0.9)] = 0.0
    return float(middle[int(fall.argmax())])


def assert_follows(counts: torch.Tensor, expected: torch.Tensor) -> None:
    """Chi-square of counts against expected counts (mean `freedom`, variance 2 * freedom): five deviations."""
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    predicted = torch.cat([expected[common], expected[~common].sum()[None]])
    present = predicted > 0
    statistic = float(((observed - predicted)[present] ** 2 / predicted[present]).sum())
    freedom = int(present.sum()) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def _refuse(number: int, completion: Completion) -> None:
    raise ValueError("told")


def text_without_frame(policy: Any, ids: Sequence[int]) -> str:
    """The text of all tokens but those that begin and end texts."""
    tokenizer = policy.tokenizer
    frame = {tokenizer.bos_token_id, *policy.eos_token_ids}
    return str(tokenizer.decode([token for token in ids if token not in frame]))


class SamplerContract:
    """Tests against the fixture `pair`: (policy, sampler) in float32, temperature 1, max_seq_length CONTEXT.

    The policy has an adapter that is not zero, or all weights train. Tests may change its weights, and sync.
    """

    tolerance = 1e-4  # of a log-probability, relative to 1 + |logp|
    moved = 1e-2  # by a step of the optimiser, at least: far beyond the tolerance

    @pytest.fixture
    def pair(self) -> tuple[Any, Sampler]:
        raise NotImplementedError

    def test_logprobs_are_the_policys_and_follow_its_updates(self, pair: tuple[Any, Sampler]) -> None:
        policy, sampler = pair
        params = SamplingParams(max_completion_tokens=16, seed=1)
        sampler.sync(policy)
        before = sampler.sample(PROMPTS, 4, params)
        assert gap(policy, PROMPTS, before) < self.tolerance
        optimizer = torch.optim.AdamW(list(policy.trainable_parameters()), lr=0.05)
        groups = [Group(Problem("p", "q", "1"), p, tuple(row)) for p, row in zip(PROMPTS, before, strict=True)]
        policy.token_logprobs(collate(groups, device=policy.device))[0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert gap(policy, PROMPTS, before) > self.moved  # the old completions are not the new policy's
        sampler.sync(policy)
        assert gap(policy, PROMPTS, sampler.sample(PROMPTS, 4, params)) < self.tolerance

    def test_sampling_leaves_the_policy_as_it_was(self, pair: tuple[Any, Sampler]) -> None:
        policy, sampler = pair
        before = [parameter.detach().clone() for parameter in policy.trainable_parameters()]
        sampler.sync(policy)
        sampler.sample(PROMPTS, 2, SamplingParams(max_completion_tokens=4))
        sampler.sync(policy)
        sampler.sample(PROMPTS, 2, SamplingParams(max_completion_tokens=4))
        after = list(policy.trainable_parameters())
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert all(parameter.requires_grad for parameter in after)

    def test_n_seeds_ends_and_text(self, pair: tuple[Any, Sampler]) -> None:
        policy, sampler = pair
        first, again, other = (
            sampler.sample(PROMPTS, 5, SamplingParams(max_completion_tokens=10, seed=seed)) for seed in (7, 7, 8)
        )
        assert [len(row) for row in first] == [5, 5]
        assert first == again
        assert first != other
        assert len({completion.token_ids for row in first for completion in row}) > 5
        for completion in (completion for row in first for completion in row):
            stopped = completion.token_ids[-1] in policy.eos_token_ids
            assert completion.finish_reason == ("stop" if stopped else "length")
            assert completion.truncated == (not stopped)
            assert len(completion.token_ids) == len(completion.logprobs)
            assert len(completion.token_ids) == 10 or stopped
            assert completion.text == text_without_frame(policy, completion.token_ids)

    def test_each_completion_is_told_once_it_is_there(self, pair: tuple[Any, Sampler]) -> None:
        _, sampler = pair
        told: list[tuple[int, Any]] = []
        params = SamplingParams(max_completion_tokens=20, seed=4)
        rows = sampler.sample(PROMPTS, 6, params, ended=lambda number, completion: told.append((number, completion)))
        key = repr
        assert sorted(told, key=key) == sorted(((i, c) for i, row in enumerate(rows) for c in row), key=key)
        assert rows == sampler.sample(PROMPTS, 6, params)

    @pytest.mark.parametrize("wanted", [{0, 1, 2, 3, 4}, {1}, {3, 4}])
    def test_a_block_is_what_its_own_seed_gives_whatever_else_is_wanted(
        self, pair: tuple[Any, Sampler], wanted: set[int]
    ) -> None:
        """Three blocks of two prompts, the last one short."""
        _, sampler = pair
        prompts, seeds = [SHORT, LONG, LONG, SHORT, SHORT], [21, 22, 23]
        params = SamplingParams(max_completion_tokens=8)
        expected = []
        for block, seed in enumerate(seeds):
            expected += sampler.sample(prompts[2 * block : 2 * block + 2], 3, replace(params, seed=seed))
        told: list[tuple[int, Any]] = []
        found = dict(
            sampler.sample_blocks(
                prompts, 3, params, size=2, seeds=seeds, wanted=wanted, ended=lambda *one: told.append(one)
            )
        )
        key = repr
        assert sorted(told, key=key) == sorted(((i, c) for i, row in found.items() for c in row), key=key)
        assert wanted <= found.keys() <= {n for w in wanted for n in (w, w ^ 1)} & set(range(5))
        for number, completions in found.items():
            assert [c.token_ids for c in completions] == [c.token_ids for c in expected[number]]
            assert [c.finish_reason for c in completions] == [c.finish_reason for c in expected[number]]
            logps, wanted_logps = ([p for c in row for p in c.logprobs] for row in (completions, expected[number]))
            assert logps == pytest.approx(wanted_logps, abs=self.tolerance, rel=self.tolerance)

    def test_what_is_given_up_leaves_nothing_behind(self, pair: tuple[Any, Sampler]) -> None:
        _, sampler = pair
        params = SamplingParams(max_completion_tokens=12, seed=6)
        expected = sampler.sample(PROMPTS, 4, params)
        numbers = range(40)
        coming = sampler.sample_blocks([*PROMPTS] * 20, 4, params, size=1, seeds=[*numbers], wanted=numbers)
        next(coming)
        coming.close()
        with pytest.raises(ValueError, match="told"):
            sampler.sample(PROMPTS, 4, params, ended=_refuse)
        assert sampler.sample(PROMPTS, 4, params) == expected

    def test_every_end_of_sequence_id_ends_a_completion(self, pair: tuple[Any, Sampler]) -> None:
        policy, sampler = pair
        before = policy.eos_token_ids
        policy.eos_token_ids = frozenset(range(2, 40))
        try:
            rows = sampler.sample(PROMPTS, 20, SamplingParams(max_completion_tokens=30, seed=2))
        finally:
            policy.eos_token_ids = before
        completions = [completion for row in rows for completion in row]
        for completion in completions:
            *inner, last = completion.token_ids
            assert not any(2 <= token < 40 for token in inner)
            assert (2 <= last < 40) == (completion.finish_reason == "stop")
        assert sum(completion.finish_reason == "stop" for completion in completions) > 30

    @pytest.mark.parametrize("nucleus", [False, True])
    def test_first_tokens_follow_the_distribution(self, pair: tuple[Any, Sampler], nucleus: bool) -> None:
        policy, sampler = pair
        sampler.sync(policy)
        top_p = clear_top_p(first_token(policy)) if nucleus else 1.0
        params = SamplingParams(top_p=top_p, max_completion_tokens=1, seed=11)
        (row,) = sampler.sample([SHORT], 2000, params)
        expected = first_token(policy, top_p=top_p)
        ids = torch.tensor([completion.token_ids[0] for completion in row])
        assert_follows(torch.bincount(ids, minlength=len(expected)).double(), 2000 * expected)

    def test_the_context_bounds_each_row_and_prompts_without_room_are_refused(self, pair: tuple[Any, Sampler]) -> None:
        _, sampler = pair
        with pytest.raises(GenerationError, match=f"prompt 1 has {CONTEXT} tokens"):
            sampler.sample([SHORT, tuple(range(8, 8 + CONTEXT))], 1, SamplingParams())
        with pytest.raises(GenerationError, match="prompt 0 is empty"):
            sampler.sample([()], 1, SamplingParams())
        rows = sampler.sample([SHORT, tuple(range(8, 4 + CONTEXT))], 3, SamplingParams(max_completion_tokens=90))
        assert max(len(completion.token_ids) for completion in rows[1]) <= 4
        assert max(len(completion.token_ids) for completion in rows[0]) > 4
