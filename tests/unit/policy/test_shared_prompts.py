"""Attention in two parts against one softmax over prompt and completion, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gtpo_cli.policy.shared_prompts import SharedPrompts

B, n, h, G, d, P = 3, 4, 2, 3, 16, 11


def one_softmax(query: Tensor, keys: Tensor, values: Tensor, may_look: Tensor, scale: float) -> Tensor:
    scores = (query.double() @ keys.double().transpose(-1, -2)) * scale
    return scores.masked_fill(~may_look, float("-inf")).softmax(dim=-1) @ values.double()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_two_parts_are_one_softmax(dtype: torch.dtype, error: float, padded: bool) -> None:
    """Also after rows were dropped, so that groups differ in size, and after a whole group is gone."""
    generator = torch.Generator().manual_seed(1)

    def randn(*shape: int) -> Tensor:
        return 2 * torch.randn(*shape, generator=generator).to(dtype)

    layers = [(randn(B, h, P, d), randn(B, h, P, d)) for _ in range(2)]
    mask = torch.ones(B, P, dtype=torch.long)
    if padded:
        mask[0, :4] = mask[2, :9] = 0
    prompt_R = torch.arange(B).repeat_interleave(n)
    shared = SharedPrompts(layers, mask if padded else None, prompt_R)
    for kept in (range(12), [0, 1, 3, 4, 8, 9, 10, 11], [0, 3, 4, 5, 6], [4]):  # rows of those before
        keep = torch.zeros(len(prompt_R), dtype=torch.bool)
        keep[kept] = True
        prompt_R = prompt_R[keep]
        shared.select(keep)
        R = len(prompt_R)
        for T in (1, 7):
            query, keys, values = randn(R, h, G, d), randn(R, h, T, d), randn(R, h, T, d)
            for number, (prompt_keys, prompt_values) in enumerate(layers):
                found = shared.attend(number, query, keys, values, d**-0.5)
                may_look = torch.cat([mask[prompt_R].bool(), torch.ones(R, T, dtype=torch.bool)], dim=1)[:, None, None]
                expected = one_softmax(
                    query, torch.cat([prompt_keys[prompt_R], keys], dim=2),
                    torch.cat([prompt_values[prompt_R], values], dim=2), may_look, d**-0.5,
                )  # fmt: skip
                torch.testing.assert_close(found.double(), expected, rtol=error, atol=error)
                assert found.dtype == dtype
