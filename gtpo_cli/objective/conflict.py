"""Conflict tokens: what right and wrong completions of a group share at the same place (Section 5.1, Eq. 9).

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded).

Readings of the text that this file settles (docs/objective.md, section 4):
- a run of conflict tokens is anchored: it starts at the first token (forward) or at the last real one (backward);
- sharing a token at a position does not ask that what stands before agrees (`alignment="position"`, the paper);
  `alignment="prefix"` asks it: the two completions agree on every token from the anchored end up to this one;
- completions with A = 0 make no conflict; a token of theirs can stand in the mask, but its weight stays 1.
Beyond the paper: `span="all"` does not stop at the first token that is not shared, and so takes in shared tokens in the
middle, which the paper leaves alone.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Alignment = Literal["position", "prefix"]
Span = Literal["ends", "all"]

# Pairs of tokens compared at once: bounds the memory of a large group at a few times this many bytes.
_BLOCK_PAIRS = 1 << 25


class ConflictSpans(NamedTuple):
    """The two masks, bool (B, G, T), in the completion's own token order; False at padding."""

    forward_BGT: Tensor
    backward_BGT: Tensor


def conflict_spans(
    completion_ids_BGT: Tensor,
    completion_mask_BGT: Tensor,
    advantages_BG: Tensor,
    *,
    alignment: Alignment = "position",
    span: Span = "ends",
) -> ConflictSpans:
    """The forward and the backward conflict mask of each completion.

    A token is a forward conflict token at position p when the same id stands at position p in at least one completion
    of G+ = {A > 0} and in at least one of G- = {A < 0}; a backward one at offset r likewise, counted from the last
    real token. The forward mask covers the first contiguous run from the left, the backward mask that from the right.

    Args:
        completion_ids_BGT: integer token ids, (B, G, T); what stands at padded places is not read.
        completion_mask_BGT: bool, True at real tokens, which are contiguous from position 0.
        advantages_BG: (B, G); only the sign is read.
        alignment: "position" (the paper) or "prefix" (stricter, see above).
        span: "ends" (the paper): the first contiguous run; "all": every conflict token. With "prefix" alignment both
            are the same, since a common prefix has no gaps.
    Raises:
        ValueError: shapes that do not fit, an unknown alignment or span.

    Memory: at most a few times B*G*G*T booleans, in blocks where G is large; nothing of vocabulary size.
    """
    if completion_ids_BGT.shape != completion_mask_BGT.shape or completion_ids_BGT.shape[:2] != advantages_BG.shape:
        raise ValueError(
            f"shapes do not fit: ids {tuple(completion_ids_BGT.shape)}, mask {tuple(completion_mask_BGT.shape)}, "
            f"advantages {tuple(advantages_BG.shape)}"
        )
    if alignment not in ("position", "prefix"):
        raise ValueError(f"alignment must be 'position' or 'prefix', got {alignment!r}")
    if span not in ("ends", "all"):
        raise ValueError(f"span must be 'ends' or 'all', got {span!r}")
    mask = completion_mask_BGT.bool()
    ids = completion_ids_BGT.to(torch.int32).masked_fill(~mask, -1)
    by_position = _leading_run if span == "ends" else _shared_tokens
    conflicts = _leading_common_prefix if alignment == "prefix" else by_position
    forward = conflicts(ids, mask, advantages_BG)
    reversal = _reversal_index(mask)
    backward = conflicts(ids.gather(-1, reversal), mask, advantages_BG).gather(-1, reversal)
    return ConflictSpans(forward, backward & mask)


def conflict_mask(
    completion_ids_BGT: Tensor,
    completion_mask_BGT: Tensor,
    advantages_BG: Tensor,
    *,
    alignment: Alignment = "position",
    span: Span = "ends",
) -> Tensor:
    """M = forward OR backward, bool (B, G, T). Arguments and errors as `conflict_spans`."""
    spans = conflict_spans(completion_ids_BGT, completion_mask_BGT, advantages_BG, alignment=alignment, span=span)
    return spans.forward_BGT | spans.backward_BGT


def conflict_weights(
    conflict_BGT: Tensor,
    advantages_BG: Tensor,
    *,
    positive_weight: float = 2.0,
    negative_weight: float = 0.0,
) -> Tensor:
    """lambda of each token (Eq. 9): shared tokens are not punished and count double when rewarded.

        lambda = negative_weight  where M and A < 0
                 positive_weight  where M and A > 0
                 1                elsewhere, also where A = 0

    Args:
        conflict_BGT: M, bool (B, G, T).
        advantages_BG: (B, G), before any entropy term is taken off; only the sign is read.
    Returns:
        float32 (B, G, T).
    """
    sign = torch.sign(advantages_BG)[..., None]
    weights = torch.ones(conflict_BGT.shape, dtype=torch.float32, device=conflict_BGT.device)
    weights = weights.masked_fill(conflict_BGT & (sign > 0), positive_weight)
    return weights.masked_fill(conflict_BGT & (sign < 0), negative_weight)


def _leading_run(ids_BGT: Tensor, mask_BGT: Tensor, advantages_BG: Tensor) -> Tensor:
    """bool (B, G, T): the first contiguous run, from position 0, of tokens shared with G+ and with G-."""
    shared = _shared_tokens(ids_BGT, mask_BGT, advantages_BG)
    return shared.view(torch.uint8).cummin(dim=-1).values.bool() if shared.numel() else shared


def _shared_tokens(ids_BGT: Tensor, mask_BGT: Tensor, advantages_BG: Tensor) -> Tensor:
    """bool (B, G, T): tokens that stand at the same position in a completion of G+ and in one of G-."""
    G, T = ids_BGT.shape[1:]
    if T == 0:
        return mask_BGT
    # Booleans as uint8, `any` as `amax`: the same values, several times faster in torch on a CPU.
    positive = (advantages_BG > 0).to(torch.uint8)[:, None, :, None]
    negative = (advantages_BG < 0).to(torch.uint8)[:, None, :, None]
    shared = torch.empty(ids_BGT.shape, dtype=torch.uint8, device=ids_BGT.device)
    rows = max(1, _BLOCK_PAIRS // max(1, ids_BGT.numel()))
    for start in range(0, G, rows):
        block = slice(start, start + rows)
        # equal[b, i, j, t]: completions i and j of prompt b hold the same id at t. Padding is masked out below.
        equal = (ids_BGT[:, block, None, :] == ids_BGT[:, None, :, :]).view(torch.uint8)
        shared[:, block] = (equal & positive).amax(dim=2) & (equal & negative).amax(dim=2)
    return shared.bool() & mask_BGT


def _leading_common_prefix(ids_BGT: Tensor, mask_BGT: Tensor, advantages_BG: Tensor) -> Tensor:
    """bool (B, G, T): the longest prefix shared with one completion of G+ at least and with one of G- at least."""
    B, G, T = ids_BGT.shape
    if T == 0:
        return mask_BGT
    agreed = torch.empty(B, G, G, dtype=torch.long, device=ids_BGT.device)  # tokens from the start, for each pair
    rows = max(1, _BLOCK_PAIRS // max(1, ids_BGT.numel()))
    for start in range(0, G, rows):
        block = slice(start, start + rows)
        differs = (ids_BGT[:, block, None, :] != ids_BGT[:, None, :, :]).view(torch.uint8)
        found, first = differs.max(dim=-1)
        agreed[:, block] = torch.where(found.bool(), first, T)
    positive, negative = (advantages_BG > 0)[:, None, :], (advantages_BG < 0)[:, None, :]
    length = torch.minimum((agreed * positive).amax(dim=2), (agreed * negative).amax(dim=2))
    return (torch.arange(T, device=ids_BGT.device) < length[..., None]) & mask_BGT


def _reversal_index(mask_BGT: Tensor) -> Tensor:
    """Index (B, G, T) that turns the real tokens of each row around and leaves padding in place; its own inverse."""
    T = mask_BGT.shape[-1]
    positions = torch.arange(T, device=mask_BGT.device)
    lengths = mask_BGT.sum(dim=-1, keepdim=True)
    return torch.where(positions < lengths, lengths - 1 - positions, positions)
