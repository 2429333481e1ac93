"""collate: every tensor by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gtpo_cli.policy.sampler import collate
from gtpo_cli.types import Completion, Group, Problem, Verdict


def verdict(reward: float) -> Verdict:
    return Verdict(reward, 0.0, 0.0, False, False, False, None)


def group(prompt: tuple[int, ...], *rows: tuple[int, ...], rewards: tuple[float, ...]) -> Group:
    completions = tuple(
        Completion(ids, tuple(-0.5 * (k + 1) for k in range(len(ids))), "length" if 9 in ids else "stop", "")
        for ids in rows
    )
    return Group(Problem("p", "q", "1"), prompt, completions, tuple(verdict(reward) for reward in rewards))


def test_ragged_groups_by_hand() -> None:
    rows = collate([group((7, 8), (5, 0, 2), (9,), rewards=(20, 1)), group((6,), (), (0, 0), rewards=(0, 11))])
    assert rows.prompt_ids_BP.tolist() == [[7, 8], [6, 0]]
    assert rows.prompt_mask_BP.tolist() == [[True, True], [True, False]]
    assert rows.prompt_N.tolist() == [0, 0, 1, 1]
    assert rows.ids_NT.tolist() == [[5, 0, 2], [9, 0, 0], [0, 0, 0], [0, 0, 0]]
    # id 0 is a real token in three places and padding elsewhere: only the mask tells
    assert rows.mask_NT.tolist() == [[True, True, True], [True, False, False], [False] * 3, [True, True, False]]
    assert rows.sampled_NT.tolist() == [[-0.5, -1.0, -1.5], [-0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [-0.5, -1.0, 0.0]]
    assert rows.rewards_N.tolist() == [20.0, 1.0, 0.0, 11.0]
    assert rows.rewards_N.dtype == torch.float64
    assert rows.truncated_N.tolist() == [False, True, False, False]
    assert rows.by_group(rows.ids_NT).tolist() == [[[5, 0, 2], [9, 0, 0]], [[0, 0, 0], [0, 0, 0]]]
    assert rows.ids_NT.dtype == torch.int64


def test_groups_without_verdicts_have_reward_zero() -> None:
    scored = group((1,), (2,), (3,), rewards=(5, 6))
    assert collate([dataclasses.replace(scored, verdicts=())]).rewards_N.tolist() == [0.0, 0.0]


def test_groups_of_unequal_size_are_a_programming_error() -> None:
    with pytest.raises(AssertionError):
        collate([group((1,), (2,), (3,), rewards=(5, 6)), group((1,), (2,), rewards=(5,))])
