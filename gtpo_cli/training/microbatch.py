"""How many completions go through the model at once in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gtpo_cli.errors import ModelError
from gtpo_cli.models.row_limit import RowLimit

# Tokens of prompt and completion in one forward when the recipe says auto. Gradients do not depend on it.
AUTO_TOKENS = 16_384


class MicroBatchSize(RowLimit):
    """Completions in one forward: the recipe's number, or a token budget; halved whenever memory runs out."""

    def __init__(self, setting: Literal["auto"] | int, *, longest_row: int, warn: Callable[[str], None]) -> None:
        """`longest_row`: most tokens of prompt and completion together that a row can have in this run."""
        super().__init__(
            max(1, AUTO_TOKENS // max(1, longest_row)) if setting == "auto" else setting,
            words="in training (same gradient)",
            failure=ModelError(
                "out of memory with a single completion in the forward pass: lower rollout.max_completion_tokens, or "
                "turn on model.gradient_checkpointing or model.load_in_4bit; gtpo plan says what fits"
            ),
            warn=warn,
        )
