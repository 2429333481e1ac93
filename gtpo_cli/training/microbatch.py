"""How much goes through the model at once in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from gtpo_cli.errors import ModelError
from gtpo_cli.models.work_limit import WorkLimit
from gtpo_cli.objective import MicroBatch, TokenBatch, Unit

# Tokens of prompts and completions in one forward when the recipe says auto. Gradients do not depend on it.
AUTO_TOKENS = 16_384


# `cut(batch)` gives micro-batches of the size that fits, `cut(batch, only_BG=...)` those of some of its completions.
Cut = Callable[..., Iterator[MicroBatch]]


class MicroBatchSize:
    """The recipe's number of completions, or a number of tokens; halved whenever memory runs out."""

    def __init__(
        self, setting: Literal["auto"] | int, *, longest_row: int, packed: bool, warn: Callable[[str], None]
    ) -> None:
        """`longest_row`: most tokens of prompt and completion together that a row can have in this run; `packed`:
        whether the policy lays a micro-batch out as one row (`Policy.packs`)."""
        unit: Unit = "tokens" if setting == "auto" else "completions"
        self._cut = partial(TokenBatch.split, unit=unit, packed=packed)
        self._limit = WorkLimit(
            AUTO_TOKENS if setting == "auto" else setting,
            unit=unit,
            least=longest_row if setting == "auto" else 1,
            words="in training (same gradient)",
            failure=ModelError(
                "out of memory with a single completion in the forward pass: lower rollout.max_completion_tokens, or "
                "turn on model.gradient_checkpointing or model.load_in_4bit; gtpo plan says what fits"
            ),
            warn=warn,
        )

    @property
    def limit(self) -> int:
        """Completions or tokens at a time, as it stands."""
        return self._limit.limit

    def __str__(self) -> str:
        return f"{self._limit.limit:,} {self._limit.unit}"

    def run(self, work: Callable[[Cut], None], batch: TokenBatch) -> None:
        """Call `work(cut)` for what is to be done with `batch`; once more, cut finer, after an out-of-memory."""
        rows = batch.lengths_BG.numel()
        tokens = int(batch.lengths_BG.sum() + batch.prompt_mask_BP.sum() * batch.shape[1])
        cut = self._cut
        self._limit.run(
            lambda limit: work(partial(cut, limit=limit)),
            at_most=rows if self._limit.unit == "completions" else tokens,
        )
