"""The size of micro-batches, which shrinks when memory runs out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, TypeVar

import torch

from gtpo_cli.errors import GtpoError, ModelError, out_of_memory
from gtpo_cli.objective.batch import Unit

# Tokens of prompts and completions in one training forward with micro_batch_size: auto. It does not change gradients.
AUTO_TOKENS = 16_384

Result = TypeVar("Result")


class Budget:
    """A number of completions or tokens that is halved for good whenever memory runs out."""

    def __init__(
        self,
        limit: int,
        *,
        unit: Unit = "completions",
        least: int = 1,
        words: str,
        failure: GtpoError,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`unit` and `words` form the warning 'out of memory: 4 completions at a time from now on ...'.

        `warn` gets it (default: a Python warning). `failure` is raised when memory runs out at the limit `least`.
        """
        self.limit, self.unit = limit, unit
        self._least, self._words, self._failure = least, words, failure
        self.warn = warn or (lambda text: warnings.warn(text, RuntimeWarning, stacklevel=3))

    def __str__(self) -> str:
        return f"{self.limit:,} {self.unit}"

    def run(self, work: Callable[[int], Result], *, at_most: int) -> Result:
        """Return `work(limit)`. When memory runs out, free what can be freed and start over with half the limit.

        `at_most`: the total amount of work; the limit itself only changes when memory runs out. `work` must be able to
        start over. Raises `failure` if not even `least` fits.
        """
        while True:
            limit = max(1, min(self.limit, at_most))
            try:
                return work(limit)
            except (RuntimeError, MemoryError) as error:
                if out_of_memory(error) != "the GPU":
                    raise
                if limit <= self._least:
                    raise self._failure from error
                self.limit = max(self._least, limit // 2)
                self.warn(f"out of memory: {self} at a time from now on {self._words}")
            # outside the except block, in which the traceback would still hold the tensors
            torch.cuda.empty_cache()


def training_budget(setting: Literal["auto"] | int, *, longest_row: int, warn: Callable[[str], None]) -> Budget:
    """Return the budget for `training.micro_batch_size`, in completions; auto is in tokens.

    `longest_row`: most tokens of prompt and completion together in this run.
    """
    auto = setting == "auto"
    return Budget(
        AUTO_TOKENS if setting == "auto" else setting,
        unit="tokens" if auto else "completions",
        least=longest_row if auto else 1,
        words="in training (same gradient)",
        failure=ModelError(
            "out of memory with a single completion in the forward pass: lower rollout.max_completion_tokens, or "
            "turn on model.gradient_checkpointing or model.load_in_4bit; gtpo plan shows what fits"
        ),
        warn=warn,
    )
