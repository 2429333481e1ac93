"""The size of micro-batches, which shrinks when memory runs out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from torch import Tensor

from gtpo_cli.errors import EvaluationError, GtpoError, ModelError, out_of_memory
from gtpo_cli.objective.batch import Rows, Unit

# Tokens of prompts and completions in one forward: of training with micro_batch_size: auto, where they do not change
# gradients, and of measuring entropies.
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

    def run(self, work: Callable[[int], Result], *, at_most: int, least: int | None = None) -> Result:
        """Return `work(limit)`. When memory runs out, free what can be freed and start over with half the limit.

        `at_most`: the total amount of work; the limit itself only changes when memory runs out. `work` must be able to
        start over. `least`: of this work, if not that of the budget. Raises `failure` if not even that fits.
        """
        least = self._least if least is None else least
        while True:
            limit = max(1, min(self.limit, at_most))
            try:
                return work(limit)
            except (RuntimeError, MemoryError) as error:
                if out_of_memory(error) != "the GPU":
                    raise
                if limit <= least:
                    raise self._failure from error
                self.limit = max(least, limit // 2)
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


def measuring_budget() -> Budget:
    """Return the budget for measuring entropies, in tokens; a policy keeps its own for life."""
    return Budget(
        AUTO_TOKENS,
        unit="tokens",
        words="in measuring",
        failure=EvaluationError(
            "out of memory while measuring the entropy of a single completion: lower rollout.gpu_memory_utilization if "
            "vLLM shares the GPU, or else the completions' length (max_completion_tokens)"
        ),
    )


@torch.no_grad()
def measure_rows(rows: Rows, measure: Callable[[Rows], Tensor], budget: Budget, *, packed: bool) -> Tensor:
    """Return `measure` of every token, float32 (N, T), 0 at padding, with as many rows at a time as fit.

    `packed`: as in `Rows.split`. When memory runs out, the rows that were measured before stay measured. Raises the
    budget's `failure` if a single row does not fit.
    """
    values_NT = torch.zeros(rows.ids_NT.shape, device=rows.ids_NT.device)
    missing_N = torch.ones(len(rows), dtype=torch.bool, device=values_NT.device)

    def work(limit: int) -> None:
        for index in list(rows.split(limit, unit=budget.unit, packed=packed, chosen_N=missing_N)):
            part = measure(rows[index])
            values_NT[index, : part.shape[1]] = part
            missing_N[index] = False

    longest = rows.ids_NT.shape[1] + rows.prompt_ids_BP.shape[1]
    budget.run(work, at_most=rows.size(budget.unit), least=longest if budget.unit == "tokens" else 1)
    return values_NT
