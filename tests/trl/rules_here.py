"""A rule that compares all tokens of a step, for the comparison with TRL."""

from __future__ import annotations

from torch import Tensor

from gtpo_cli.objective import Tokens


def by_entropy(tokens: Tokens) -> Tensor:
    assert tokens.entropy is not None
    return tokens.entropy / tokens.entropy[tokens.mask].max()
