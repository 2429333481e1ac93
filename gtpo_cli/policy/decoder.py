"""Decode a batch of completions token by token: the protocol, and an implementation for any transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gtpo_cli.policy.transformers_policy import TransformersPolicy


class Decoder(Protocol):
    """The state of R rows, which gives the logits of their next tokens."""

    def logits(self) -> Tensor:
        """Return float32 logits (R, V) for the next token."""
        ...

    def advance(self, token_R: Tensor) -> None:
        """Feed one token to every row."""
        ...

    def select(self, keep_R: Tensor) -> None:
        """Keep only these rows (bool)."""
        ...


class Prefill:
    """The prompts, each encoded once and repeated for its n rows; left-padded if their lengths differ.

    hidden: (R, H), the state that predicts the first token. positions: (R,), the first token's position.
    width: tokens of the longest prompt. mask: (R, width), 1 for tokens and 0 for padding; None without padding.
    """

    def __init__(self, policy: TransformersPolicy, prompts: Sequence[Sequence[int]], n: int) -> None:
        from transformers import DynamicCache

        self.width = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), self.width, dtype=torch.long)
        mask = torch.zeros(len(prompts), self.width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, self.width - len(prompt) :] = torch.tensor(prompt)
            mask[row, self.width - len(prompt) :] = 1
        # Without a mask, attention takes its fast path.
        padded = not bool(mask.all())
        mask = mask.to(policy.device)
        self.cache = DynamicCache(config=policy.backbone.config)
        output = policy.backbone(
            input_ids=ids.to(policy.device),
            attention_mask=mask if padded else None,
            position_ids=(mask.cumsum(dim=-1) - 1).clamp(min=0),
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache.batch_repeat_interleave(n)
        self.hidden: Tensor = output.last_hidden_state[:, -1].repeat_interleave(n, dim=0)
        self.positions = mask.sum(dim=-1).repeat_interleave(n)
        self.mask = mask.repeat_interleave(n, dim=0) if padded else None


class ModelDecoder:
    """Implements `Decoder` with the model's own forward pass and cache."""

    def __init__(self, policy: TransformersPolicy, prompts: Sequence[Sequence[int]], n: int) -> None:
        from gtpo_cli.policy.cache import make_room

        self._backbone, (self._weight, self._bias) = policy.backbone, policy.lm_head
        prefill = Prefill(policy, prompts, n)
        make_room(prefill.cache)
        self._cache, self._mask = prefill.cache, prefill.mask
        self._hidden, self._positions = prefill.hidden, prefill.positions

    def logits(self) -> Tensor:
        return torch.nn.functional.linear(self._hidden, self._weight, self._bias).float()

    def advance(self, token_R: Tensor) -> None:
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(token_R), 1)], dim=1)
        output = self._backbone(
            input_ids=token_R[:, None],
            attention_mask=self._mask,
            position_ids=self._positions[:, None],
            past_key_values=self._cache,
            use_cache=True,
        )
        self._hidden = output.last_hidden_state[:, -1]
        self._positions = self._positions + 1

    def select(self, keep_R: Tensor) -> None:
        self._cache.batch_select_indices(keep_R.nonzero().squeeze(1))
        self._hidden, self._positions = self._hidden[keep_R], self._positions[keep_R]
        if self._mask is not None:
            self._mask = self._mask[keep_R]
