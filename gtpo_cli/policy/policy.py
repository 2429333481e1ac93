"""The interface of a policy, the same for every library that holds the model, and what all of them do about dropout.

Dropout and reinforcement learning do not go together. Two forward passes with dropout are two random sub-networks. Then
exp(ln pi - ln pi_old) is not 1 even if nothing changed, and <H>, which decides delta and c, is not that of the policy
that sampled. So adapters have no dropout, and dropout in the model's own configuration is switched off except for SFT,
as TRL's `disable_dropout` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gtpo_cli.objective.batch import Rows
    from gtpo_cli.policy.packing import Budget


# Bytes of optimiser state for each trained weight: two moments in 32 bits, or in 8 bits with a scale for each 256.
STATE_BYTES = {"adamw": 8.0, "adamw_8bit": 2.04, "paged_adamw_8bit": 2.04}


class Policy(Protocol):
    """Model, tokenizer and adapter. A policy never samples.

    tokenizer: a Hugging Face tokenizer.
    device: where its inputs must be.
    dtype: the type of computation (`model.dtype`); trained weights and their moments are always float32.
    temperature: divides the logits of every distribution, as in sampling (docs/objective.md, section 5).
    eos_token_ids: all ids that end a completion.
    max_seq_length: most tokens of prompt and completion together.
    packs: whether `token_logprobs` packs rows into one sequence with each prompt once, instead of padding them.
    vocabulary: the model's token ids are below this.
    measuring: size of a forward pass without gradient, which remembers what fitted into memory.
    num_parameters: numbers that the model and its adapter store in memory (two 4-bit weights are stored as one).
    """

    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    temperature: float
    eos_token_ids: frozenset[int]
    max_seq_length: int
    packs: bool
    vocabulary: int
    measuring: Budget
    num_parameters: int

    def token_logprobs(self, rows: Rows, *, trained_NT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (logprobs_NT with gradient, entropy_NT detached), float32 nats, 0 at padding, from one forward pass.

        No logits are kept. `trained_NT` (bool): the tokens whose log-probability will get a gradient; for the others
        this saves work. None means all.

        Without gradient (torch.no_grad) adapter dropout is off, so nothing is random.
        """
        ...

    def reference_logprobs(self, rows: Rows) -> Tensor:
        """Return logprobs_NT of the model at the start of training (adapter off, or as it started), no gradient."""
        ...

    def plain_logprobs(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> Tensor:
        """Return ln pi of the completion's T tokens, (T), float32 nats, from a plain forward without gradient.

        It uses all logits of the model that `save` writes. It is slow and serves to check `token_logprobs`.
        """
        ...

    def switch_off_dropout(self) -> float:
        """Train without dropout from now on. Return the largest former probability, 0 for none."""
        ...

    def trainable_parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return the parameters that an optimiser updates, always in the same order."""
        ...

    def save(self, folder: Path) -> None:
        """Write the trained weights (adapter, or all) as safetensors, with the files needed to load them again."""
        ...

    def load(self, folder: Path) -> None:
        """Load exactly what `save` wrote. Raises CheckpointError, and ModelError unless an adapter is plain LoRA."""
        ...


def active_dropout(model: Any) -> list[tuple[Any, str, float]]:
    """Return (module, attribute, probability) of every dropout above 0 of a model.

    These are dropout layers, and modules with an attribute such as `attention_dropout`, `layerdrop` or `resid_pdrop`.
    """
    return [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float)
        and 0.0 < value <= 1.0
        and ("drop" in name or (name == "p" and "Dropout" in type(module).__name__))
    ]


def switch_off_dropout(model: Any) -> float:
    """Set every dropout of a model to 0 and return the largest former value. The model's configuration stays."""
    found = active_dropout(model)
    for module, name, _ in found:
        setattr(module, name, 0.0)
    return max((value for *_, value in found), default=0.0)
