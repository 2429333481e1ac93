"""How many completions go through the model at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from gtpo_cli.errors import ModelError

# Tokens of prompt and completion in one forward when the recipe says auto. Gradients do not depend on it; an
# out-of-memory halves it.
_AUTO_TOKENS = 16_384


class MicroBatchSize:
    """Completions in one forward: the recipe's number, or a token budget; halved whenever memory runs out."""

    def __init__(self, setting: Literal["auto"] | int, *, longest_row: int, warn: Callable[[str], None]) -> None:
        """`longest_row`: most tokens of prompt and completion together that a row can have in this run."""
        self.rows = max(1, _AUTO_TOKENS // max(1, longest_row)) if setting == "auto" else setting
        self._warn = warn

    def run(self, work: Callable[[int], None]) -> None:
        """Call `work(rows)`; after an out-of-memory, free what can be freed and start it over with half the rows.

        `work` must be able to start over. Raises ModelError when even one completion does not fit.
        """
        while True:
            try:
                work(self.rows)
                return
            except torch.OutOfMemoryError as error:
                if self.rows == 1:
                    raise ModelError(
                        "out of memory with a single completion in the forward pass: lower "
                        "rollout.max_completion_tokens, or turn on model.gradient_checkpointing or model.load_in_4bit"
                    ) from error
                self.rows = max(1, self.rows // 2)
                self._warn(f"out of memory: {self.rows} completions at a time from now on (same gradient)")
            # outside the except block: there, the traceback would still hold the tensors
            torch.cuda.empty_cache()
