"""Conflict tokens: tokens that right and wrong completions of a group share at the same place (Section 5.1, Eq. 9).

Axes: B prompts, G completions of one prompt, T completion tokens (right-padded).

The paper leaves these points open (docs/objective.md, section 4). Here:
- a run of conflict tokens is anchored: it starts at the first token (forward) or at the last real one (backward);
- two completions can share a token even if the tokens before it differ (`alignment="position"`, the paper). With
  `alignment="prefix"` they must agree on every token from the anchored end up to this one;
- completions with A = 0 cause no conflict. Their tokens can be in the mask, but the weight stays 1.
Beyond the paper, `span="all"` does not stop at the first token that is not shared. It also counts shared tokens in the
middle, which the paper leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Alignment = Literal["position", "prefix"]
Span = Literal["ends", "all"]

_FIRST_PIECE = 64  # positions compared before checking whether any run continues
# Pairs of tokens compared at once. A large group needs a few times this many bytes.
_BLOCK_PAIRS = 1 << 25


class ConflictSpans(NamedTuple):
    """The forward and backward masks, bool (B, G, T), both in the completion's token order; False at padding."""

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
    """Compute the forward and the backward conflict mask of each completion.

    A token at position p is a forward conflict token if at least one completion of G+ = {A > 0} and at least one of
    G- = {A < 0} have its id at position p. Backward conflict tokens are the same with offsets r from the last real
    token. The forward mask covers the first contiguous run from the left, the backward mask that from the right.

    Args:
        completion_ids_BGT: integer token ids >= 0, (B, G, T); ignored at padding.
        completion_mask_BGT: bool, True at real tokens, which are contiguous from position 0.
        advantages_BG: (B, G); only the sign is read.
        alignment: "position" (the paper) or "prefix" (stricter, see above).
        span: "ends" (the paper): the first contiguous run; "all": every conflict token. With "prefix" alignment both
            are the same, since a common prefix has no gaps.
    Raises:
        ValueError: shapes that do not fit, an unknown alignment or span.

    Memory: at most a few times B*G*G*T booleans, in blocks if G is large. Nothing has the vocabulary's size.
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
    (_, G, T), device = mask.shape, mask.device
    length_BG1 = mask.sum(dim=-1, keepdim=True)
    position_T = torch.arange(T, device=device)
    # Padding gets an id that is unique to its completion. It never matches, so no mask is needed below.
    nothing_G1 = -1 - torch.arange(G, device=device)[:, None]
    # uint8 for booleans and `amax` for `any` give the same values several times faster in torch on a CPU.
    signs = ((advantages_BG > 0).view(torch.uint8), (advantages_BG < 0).view(torch.uint8))

    def from_the_start(piece: slice) -> Tensor:
        return torch.where(mask[..., piece], completion_ids_BGT[..., piece], nothing_G1)

    def from_the_end(piece: slice) -> Tensor:
        place_BGT = length_BG1 - 1 - position_T[piece]
        return torch.where(place_BGT >= 0, completion_ids_BGT.gather(-1, place_BGT.clamp(min=0)), nothing_G1)

    if span == "all" and alignment == "position":
        forward, backward = (_shared_tokens(read(slice(0, T)), signs) for read in (from_the_start, from_the_end))
        turned = torch.where(mask, length_BG1 - 1 - position_T, position_T)  # last to first; its own inverse
        return ConflictSpans(forward, backward.gather(-1, turned))
    run_length = _common_prefix if alignment == "prefix" else _shared_run
    forward = position_T < run_length(from_the_start, T, signs)[..., None]
    backward = position_T >= length_BG1 - run_length(from_the_end, T, signs)[..., None]
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
    """Compute lambda of each token (Eq. 9): shared tokens are not punished, and count double when rewarded.

        lambda = negative_weight  where M and A < 0
                 positive_weight  where M and A > 0
                 1                elsewhere, also where A = 0

    Args:
        conflict_BGT: M, bool (B, G, T).
        advantages_BG: (B, G), before the entropy term is subtracted; only the sign is read.
    Returns:
        float32 (B, G, T).
    """
    sign = torch.sign(advantages_BG)[..., None]
    weights = torch.ones(conflict_BGT.shape, dtype=torch.float32, device=conflict_BGT.device)
    weights = weights.masked_fill(conflict_BGT & (sign > 0), positive_weight)
    return weights.masked_fill(conflict_BGT & (sign < 0), negative_weight)


Signs = tuple[Tensor, Tensor]  # membership in G+ and in G-, uint8 (B, G)
Reader = Callable[[slice], Tensor]  # positions from one end -> ids (B, G, .)


def _shared_run(read: Reader, T: int, signs: Signs) -> Tensor:
    """Return the length, (B, G), of the run of tokens from the anchored end that G+ and G- share."""
    length = torch.zeros_like(signs[0], dtype=torch.long)
    for piece in _growing_pieces(T):
        run = _shared_tokens(read(piece), signs).view(torch.uint8).cummin(dim=-1).values.sum(dim=-1)
        length = torch.where(length == piece.start, length + run, length)
        if not bool((length == piece.stop).any()):
            break
    return length


def _common_prefix(read: Reader, T: int, signs: Signs) -> Tensor:
    """Return the length, (B, G), of the longest prefix shared with one completion of G+ and with one of G-."""
    positive, negative = (sign[:, None, :] for sign in signs)
    B, G = signs[0].shape
    agreed = torch.zeros(B, G, G, dtype=torch.long, device=positive.device)  # tokens, for each pair
    itself = torch.eye(G, dtype=torch.bool, device=agreed.device)
    for piece in _growing_pieces(T):
        ids = read(piece)
        rows = max(1, _BLOCK_PAIRS // max(1, ids.numel()))
        for start in range(0, G, rows):
            block = slice(start, start + rows)
            found, first = (ids[:, block, None, :] != ids[:, None, :, :]).view(torch.uint8).max(dim=-1)
            upto = torch.where(found.bool(), piece.start + first, piece.stop)
            agreed[:, block] = torch.where(agreed[:, block] == piece.start, upto, agreed[:, block])
        if not bool(((agreed == piece.stop) & ~itself).any()):
            break
    agreed.masked_fill_(itself, T)
    return torch.minimum((agreed * positive).amax(dim=2), (agreed * negative).amax(dim=2))


def _growing_pieces(length: int) -> Iterator[slice]:
    """Yield the positions in pieces of doubling width: most runs are short, so later pieces are rarely needed."""
    start, width = 0, _FIRST_PIECE
    while start < length:
        yield slice(start, min(start + width, length))
        start, width = start + width, 2 * width


def _shared_tokens(ids_BGT: Tensor, signs: Signs) -> Tensor:
    """Return the mask, bool (B, G, T), of tokens that a completion of G+ and one of G- have at the same position."""
    G = ids_BGT.shape[1]
    positive, negative = (sign[:, None, :, None] for sign in signs)
    shared = torch.empty(ids_BGT.shape, dtype=torch.uint8, device=ids_BGT.device)
    rows = max(1, _BLOCK_PAIRS // max(1, ids_BGT.numel()))
    for start in range(0, G, rows):
        block = slice(start, start + rows)
        # equal[b, i, j, t]: completions i and j of prompt b hold the same id at t
        equal = (ids_BGT[:, block, None, :] == ids_BGT[:, None, :, :]).view(torch.uint8)
        shared[:, block] = (equal & positive).amax(dim=2) & (equal & negative).amax(dim=2)
    return shared.bool()
