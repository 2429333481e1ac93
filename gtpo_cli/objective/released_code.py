"""What the authors' released trainer computes where it departs from the paper (docs/objective.md, section 9).

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded).

1. advantages are centred only: `group_advantages(scale="none")`;
2. forward and backward weights multiply: a token in both spans of a positive completion weighs 4 (`released_weights`);
3. each completion's loss is divided by a conflict count too (`released_divisor`);
4. completions are summed, not averaged over G: `policy_loss(compat="released_code")`;
5. the entropy threshold is 0.7 and always on: `keep_mask(threshold=0.7, enabled="always")`;
6. p is clamped at 1e-6 inside the logarithm of the entropy (`clamped_entropy`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gtpo_cli.objective.conflict import ConflictSpans, conflict_weights

ENTROPY_CLAMP = 1e-6


def released_weights(
    spans: ConflictSpans, advantages_BG: Tensor, *, positive_weight: float = 2.0, negative_weight: float = 0.0
) -> Tensor:
    """Product of the forward and the backward weight, float32 (B, G, T): 4 where both spans of A > 0 overlap."""
    forward, backward = (
        conflict_weights(span, advantages_BG, positive_weight=positive_weight, negative_weight=negative_weight)
        for span in spans
    )
    return forward * backward


def released_divisor(spans: ConflictSpans, completion_mask_BGT: Tensor) -> Tensor:
    """max(1, n) of each completion, int64 (B, G).

    n counts the union of the forward mask and the backward mask *still in reversed order* (offset r stands at
    position r), within the completion.
    """
    mask = completion_mask_BGT.bool()
    # the backward span covers the last k tokens; in reversed order it covers the first k
    backward_length = spans.backward_BGT.sum(dim=-1, keepdim=True)
    reversed_backward = torch.arange(mask.shape[-1], device=mask.device) < backward_length
    return ((spans.forward_BGT | reversed_backward) & mask).sum(dim=-1).clamp(min=1)


@torch.no_grad()
def clamped_entropy(
    hidden_NH: Tensor,
    lm_head_VH: Tensor,
    *,
    bias_V: Tensor | None = None,
    temperature: float = 1.0,
    chunk_tokens: int = 64,
) -> Tensor:
    """-sum_v p_v ln max(p_v, 1e-6) for each token, nats, float32 (N,); p as in `token_logprobs_and_entropy`.

    The clamp needs the finished normaliser of each token, so the logits are computed once more, `chunk_tokens` at a
    time: the compat mode pays a third matrix product.
    """
    floor = torch.tensor(ENTROPY_CLAMP).log().item()
    pieces = []
    for start in range(0, hidden_NH.shape[0], chunk_tokens):
        hidden = hidden_NH[start : start + chunk_tokens]
        logits = hidden.float() @ lm_head_VH.float().T
        if bias_V is not None:
            logits += bias_V
        logp = torch.log_softmax(logits / temperature, dim=-1)
        pieces.append(-(logp.exp() * logp.clamp(min=floor)).sum(dim=-1))
    return torch.cat(pieces) if pieces else hidden_NH.new_zeros(0, dtype=torch.float32)
