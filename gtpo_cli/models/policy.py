"""The contract of a policy: what the training loop may ask of a model, whatever library holds it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gtpo_cli.objective.batch import Rows

# Bytes of an optimiser's state for each trained weight: two moments in 32 bits, or in 8 bits with a scale for 256 of
# them.
STATE_BYTES = {"adamw": 8.0, "adamw_8bit": 2.04, "paged_adamw_8bit": 2.04}


class Policy(Protocol):
    """Model, tokenizer and adapter. A policy never samples.

    tokenizer: a Hugging Face tokenizer.
    device: where its inputs must be.
    dtype: the type of computation (`model.dtype`); what is trained, and its moments, are float32 whatever that is.
    temperature: divides the logits of every distribution, as in sampling (docs/objective.md, section 5).
    eos_token_ids: all ids that end a completion.
    max_seq_length: most tokens of prompt and completion together.
    packs: whether `token_logprobs` lays rows out as one sequence with each prompt once, instead of padded rows.
    vocabulary: token ids that the model knows are below this.
    num_parameters: numbers the model and its adapter hold in memory (two 4-bit weights are stored as one).
    """

    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    temperature: float
    eos_token_ids: frozenset[int]
    max_seq_length: int
    packs: bool
    vocabulary: int
    num_parameters: int

    def token_logprobs(
        self, rows: Rows, *, trained_NT: Tensor | None = None, clamp_entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """(logprobs_NT with gradient, entropy_NT detached), float32 nats, 0 at padding; one forward, no logits kept.

        `trained_NT` (bool): the tokens whose log-probability will get a gradient; the others' need not be
        differentiable, which saves work. None means all.

        Without gradient (torch.no_grad) nothing random happens: adapter dropout is off. `clamp_entropy` gives the
        released code's entropy instead (docs/objective.md, section 9).
        """
        ...

    def reference_logprobs(self, rows: Rows) -> Tensor:
        """logprobs_NT of the model that training started from (adapter off, or as it started), without gradient."""
        ...

    def plain_logprobs(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> Tensor:
        """ln pi of the completion's T tokens, (T), float32 nats, by the own forward of the model that `save` writes,
        with all its logits, without gradient: slow, and the truth that `token_logprobs` is held against."""
        ...

    def switch_off_dropout(self) -> float:
        """Train without dropout from now on; returns the largest probability that there was, 0 for none."""
        ...

    def trainable_parameters(self) -> Iterable[torch.nn.Parameter]:
        """The parameters an optimiser updates, always in the same order."""
        ...

    def save(self, folder: Path) -> None:
        """Write what is trained (adapter, or all weights) as safetensors, with what is needed to load it again."""
        ...

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote; exact. Raises CheckpointError, and ModelError for an adapter that is not plain
        LoRA."""
        ...
