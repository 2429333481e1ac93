"""The cache of keys and values of a batch that grows by a token at a time.

transformers copies all keys and values for every token; here a token is written behind them, into room that is there
for the next ones.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_ROOM = 64  # places behind those that are used; when they are full, all is copied to where there are so many again


class RoomyLayer(DynamicLayer):  # type: ignore[misc]  # ships untyped
    """One layer, (R, heads, places, d); its `keys` and `values` are views of what is used of the places."""

    keys: Tensor
    values: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = _behind(self.keys, key_states), _behind(self.values, value_states)
        return self.keys, self.values


def make_room(cache: DynamicCache) -> None:
    """Let the layers that attend to all tokens so far, and hold some, grow in place from now on."""
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.is_initialized:
            roomy = cache.layers[number] = RoomyLayer()
            roomy.lazy_initialization(layer.keys, layer.values)
            roomy.keys, roomy.values = layer.keys, layer.values


def _behind(held_RhCd: Tensor, new_RhTd: Tensor) -> Tensor:
    """Both as one: `new` is written behind `held` where that is a view of places with room for it."""
    (R, heads, C, d), T = held_RhCd.shape, new_RhTd.shape[2]
    if held_RhCd.stride(1) < (C + T) * d:
        places = held_RhCd.new_empty(R, heads, C + T + _ROOM, d)
        places[:, :, :C] = held_RhCd
        held_RhCd = places[:, :, :C]
    both = held_RhCd.as_strided((R, heads, C + T, d), held_RhCd.stride())
    both[:, :, C:] = new_RhTd
    return both
