"""The mean entropy of a completion and the filter that uses it (Sections 4.2 and 5.2, Eq. 10).

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded). Entropies are in nats.
The per-token entropy itself comes out of the same forward pass as the log-probabilities: see logprobs.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gtpo_cli.entropy_filter import LN_2, FilterMode, filter_is_on


def mean_entropy(entropy_BGT: Tensor, completion_mask_BGT: Tensor) -> Tensor:
    """Compute <H>_i: the entropy of the sampling distribution, averaged over the tokens of completion i.

        <H>_i = 1/|o_i| sum_t H_{i,t}                    Section 4.2

    Args:
        entropy_BGT: H_{i,t} >= 0 in nats, (B, G, T); ignored at padding, where it may be NaN.
        completion_mask_BGT: bool, True at real tokens.
    Returns:
        float32 (B, G) in nats, detached; 0 for an empty completion.
    """
    mask = completion_mask_BGT.bool()
    total = entropy_BGT.detach().float().masked_fill(~mask, 0.0).sum(dim=-1)
    return total / mask.sum(dim=-1).clamp(min=1)


def keep_mask(
    mean_entropy_BG: Tensor,
    *,
    initial_entropy: float,
    threshold: float = LN_2,
    enabled: FilterMode = "auto",
    only_negative: bool = False,
    advantages_BG: Tensor | None = None,
) -> Tensor:
    """Compute delta_i: whether the loss keeps completion i.

        delta_i = 0  if the filter is on and <H>_i > theta, else 1        Eq. 10

    `filter_is_on` decides whether the filter is on. A completion exactly at the threshold is kept.

    Args:
        mean_entropy_BG: <H>_i in nats, (B, G).
        initial_entropy: <H>_ini in nats; read only with `enabled="auto"`.
        threshold: theta in nats (Figure 4b: 0.7, 1.05, 2.0).
        only_negative: filter only completions with A_i < 0 (Figure 4c); needs `advantages_BG`.
    Returns:
        bool (B, G), True = kept.
    Raises:
        ValueError: unknown `enabled`, or `only_negative` without advantages.
    """
    if only_negative and advantages_BG is None:
        raise ValueError("keep_mask: only_negative=True needs advantages_BG")
    if not filter_is_on(initial_entropy, enabled):
        return torch.ones_like(mean_entropy_BG, dtype=torch.bool)
    filtered = mean_entropy_BG > threshold
    if only_negative and advantages_BG is not None:
        filtered = filtered & (advantages_BG < 0)
    return ~filtered
