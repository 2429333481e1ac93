"""The computations in which the authors' released trainer departs from the paper (docs/objective.md, section 9).

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded).

1. advantages are centred only: `group_advantages(scale="none")`;
2. forward and backward weights multiply: a token in both spans of a positive completion weighs 4 (`released_weights`);
3. each completion's loss is divided by a conflict count too, and
4. completions are summed, not averaged over G (`released_shares`);
5. the entropy threshold is 0.7 and always on: `keep_mask(threshold=0.7, enabled="always")`;
6. p is clamped at 1e-6 inside the logarithm of the entropy (`clamped_entropy`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gtpo_cli.kernels import row_kernel
from gtpo_cli.kernels.products import factor_dtype, matmul
from gtpo_cli.objective.conflict import ConflictSpans, conflict_weights

ENTROPY_CLAMP = 1e-6
_VOCAB_BLOCK = 4096  # rows of the output layer converted to a wider type at once, if needed


def released_weights(
    spans: ConflictSpans, advantages_BG: Tensor, *, positive_weight: float = 2.0, negative_weight: float = 0.0
) -> Tensor:
    """Multiply the forward and the backward weight, float32 (B, G, T): 4 where both spans overlap and A > 0."""
    forward, backward = (
        conflict_weights(span, advantages_BG, positive_weight=positive_weight, negative_weight=negative_weight)
        for span in spans
    )
    return forward * backward


def released_divisor(spans: ConflictSpans, completion_mask_BGT: Tensor) -> Tensor:
    """Compute max(1, n) of each completion, int64 (B, G).

    n counts the union of the forward mask and the backward mask *still in reversed order* (offset r is at position r),
    within the completion.
    """
    mask = completion_mask_BGT.bool()
    # the backward span covers the last k tokens; in reversed order it covers the first k
    backward_length = spans.backward_BGT.sum(dim=-1, keepdim=True)
    reversed_backward = torch.arange(mask.shape[-1], device=mask.device) < backward_length
    return ((spans.forward_BGT | reversed_backward) & mask).sum(dim=-1).clamp(min=1)


def released_shares(completion_mask_BGT: Tensor, divisor_BG: Tensor | None) -> Tensor:
    """Compute the weight of a token of each completion in a step, float64 (B, G): 1 / (B |o_i| divisor_i).

    `divisor_BG`: None means 1, for use without conflict weights.
    """
    lengths_BG = completion_mask_BGT.bool().sum(dim=-1).clamp(min=1).double()
    return 1.0 / (lengths_BG.shape[0] * lengths_BG * (1 if divisor_BG is None else divisor_BG))


@torch.no_grad()
def clamped_entropy(
    hidden_NH: Tensor,
    lm_head_VH: Tensor,
    *,
    bias_V: Tensor | None = None,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Compute -sum_v p_v ln max(p_v, 1e-6) for each token, nats, float32 (N,); p as in `token_logprobs_and_entropy`.

    The clamp needs the final normaliser of each token, so the logits are computed once more, for `chunk_tokens` tokens
    at a time (None: as many as fit into `row_kernel.CHUNK_BYTES` with their probabilities). This costs a third matrix
    product. Factors are multiplied as in products.py. The output layer is never copied whole.
    """
    (N, _), V = hidden_NH.shape, lm_head_VH.shape[0]
    sums = torch.float64 if hidden_NH.dtype == torch.float64 else torch.float32
    factors = factor_dtype(hidden_NH.dtype, hidden_NH.device)
    floor = torch.tensor(ENTROPY_CLAMP).log().item()
    entropy_N = torch.empty(N, dtype=torch.float32, device=hidden_NH.device)
    rows = chunk_tokens or max(16, row_kernel.CHUNK_BYTES // (2 * 4 * V))
    for start in range(0, N, rows):
        hidden_Hn = hidden_NH[start : start + rows].to(factors).T.contiguous()
        logp_Vn = torch.empty(V, hidden_Hn.shape[1], dtype=sums, device=hidden_NH.device)
        for block in range(0, V, _VOCAB_BLOCK):
            places = slice(block, block + _VOCAB_BLOCK)
            matmul(lm_head_VH[places].to(factors), hidden_Hn, out=logp_Vn[places])
        if bias_V is not None:
            logp_Vn += bias_V[:, None]
        logp_Vn /= temperature
        logp_Vn -= logp_Vn.logsumexp(dim=0)
        p_Vn = logp_Vn.exp()
        entropy_N[start : start + rows] = -p_Vn.mul_(logp_Vn.clamp_(min=floor)).sum(dim=0)
    return entropy_N
