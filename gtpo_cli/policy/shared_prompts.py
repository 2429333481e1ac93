"""Attention of sampled tokens on a CPU to the prompt that their group shares.

A prompt's keys and values are stored and read once for its group, not once for each completion: reading them is most
of the time of a sampled token's attention. A token's attention is one softmax over its prompt and its own completion.
torch computes each part with the logarithm of its sum of exponentials, and these give the weights of the two parts:

    softmax over both . V = w out_prompt + (1 - w) out_own,   w = sigmoid(lse_prompt - lse_own)

Axes: B prompts, P prompt tokens, R rows (completions), T tokens of them so far, h heads with keys, G query heads that
share them, d width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class SharedPrompts:
    """The prompts of R rows.

    layers: keys and values of each layer, (B, h, P, d). mask_BP: 1 at tokens, 0 at padding; None without padding.
    prompt_R: the prompt of each row, in ascending order.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], mask_BP: Tensor | None, prompt_R: Tensor) -> None:
        self.layers = layers
        self._mask: Tensor | None = None
        if mask_BP is not None:
            self._mask = torch.zeros(mask_BP.shape).masked_fill(mask_BP == 0, float("-inf"))[:, None, None]
        self._prompt_R = prompt_R
        self._arrange()

    def select(self, keep_R: Tensor) -> None:
        """Keep only these rows (bool)."""
        self._prompt_R = self._prompt_R[keep_R]
        self._arrange()

    def _arrange(self) -> None:
        """Find the places of the rows in a rectangle with a line for each prompt."""
        self._counts = self._prompt_R.bincount(minlength=len(self.layers[0][0]))
        rows, first, most = torch.arange(len(self._prompt_R)), self._counts.cumsum(0) - self._counts, self._counts.max()
        self._place_R = self._prompt_R * most + rows - first[self._prompt_R]
        self._row_Bn = torch.zeros(len(self._counts) * int(most), dtype=torch.long)
        self._row_Bn[self._place_R] = rows

    def attend(self, layer: int, query_RhGd: Tensor, keys_RhTd: Tensor, values_RhTd: Tensor, scale: float) -> Tensor:
        """Return attention to the prompts and to keys and values of the rows' own, (R, h, G, d) in the keys' type."""
        query = query_RhGd.to(keys_RhTd.dtype)
        of_prompt, lse_prompt = _attend(self._by_prompt(query), *self.layers[layer], attn_mask=self._mask, scale=scale)
        own, lse_own = _attend(query, keys_RhTd, values_RhTd, scale=scale)
        weight = torch.sigmoid(self._by_row(lse_prompt[..., None], query) - lse_own[..., None])
        return torch.lerp(own.float(), self._by_row(of_prompt, query).float(), weight).to(query.dtype)

    def _by_prompt(self, query_RhGd: Tensor) -> Tensor:
        """Make the queries of a prompt's rows one matrix, (B, h, n * G, d)."""
        _, h, G, d = query_RhGd.shape
        rows = query_RhGd.index_select(0, self._row_Bn)
        return rows.view(len(self._counts), -1, h, G, d).transpose(1, 2).flatten(2, 3)

    def _by_row(self, results_BhXd: Tensor, query_RhGd: Tensor) -> Tensor:
        """Give results of `_by_prompt` back to the rows, (B, h, n * G, ...) -> (R, h, G, ...)."""
        (B, h, _, last), G = results_BhXd.shape, query_RhGd.shape[2]
        rows = results_BhXd.reshape(B, h, -1, G, last).transpose(1, 2).flatten(0, 1)
        return rows.index_select(0, self._place_R)


_attend: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # which returns the sums as well
