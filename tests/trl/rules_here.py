"""A rule that compares all tokens of a step, for the comparison with TRL."""

from __future__ import annotations

from torch import Tensor

from gtpo_cli.objective import Tokens


def by_entropy(tokens: Tokens) -> Tensor:
    """Its slope is small, since both sides measure entropies in other batches, with other rounding."""
    assert tokens.entropy is not None
    return 1.0 + 0.1 * tokens.entropy / tokens.entropy[tokens.mask].max()
