"""Truncated importance weights, for a sampler whose probabilities differ slightly from the policy's.

They are off by default, since the paper samples and trains with one engine. Axes: B prompts, G completions, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

CAP = 2.0


def importance_weights(logprobs_BGT: Tensor, sampled_logprobs_BGT: Tensor, *, cap: float = CAP) -> Tensor:
    """Compute the ratio of each token's probability under the policy to that under the sampler, capped at `cap`.

        w_{i,t} = min(pi(o_{i,t}) / q(o_{i,t}), cap),   q the sampler's distribution

    Without the cap, weighted means over samples of q equal means over samples of the policy. The cap adds bias and
    bounds the variance (Ionides 2008, truncated importance sampling).

    Args:
        logprobs_BGT: ln pi of the sampled tokens, nats; (B, G, T) or any shape.
        sampled_logprobs_BGT: ln q of the same tokens, of the same shape.
        cap: > 0.
    Returns:
        float32, detached, the same shape, in (0, cap]; 1 where both are equal, which includes padding.
    Raises:
        ValueError: shapes that differ, or a cap that is not positive.
    """
    if logprobs_BGT.shape != sampled_logprobs_BGT.shape:
        raise ValueError(f"shapes differ: {tuple(logprobs_BGT.shape)} and {tuple(sampled_logprobs_BGT.shape)}")
    if cap <= 0:
        raise ValueError(f"cap must be positive, got {cap}")
    gap = logprobs_BGT.detach().float() - sampled_logprobs_BGT.float()
    return torch.exp(gap).clamp(max=cap)
