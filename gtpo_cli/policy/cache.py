"""A key-value cache for a batch that grows by one token at a time.

transformers copies all keys and values for every token. This cache reserves room and writes each token in place.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_ROOM = 64  # reserved places; when they are full, the cache is copied to a larger tensor


class RoomyLayer(DynamicLayer):  # type: ignore[misc]  # ships untyped
    """One layer, (R, heads, places, d). Its `keys` and `values` are views of the used places."""

    keys: Tensor
    values: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = _append(self.keys, key_states), _append(self.values, value_states)
        return self.keys, self.values


def make_room(cache: DynamicCache) -> None:
    """Let the filled layers with full attention grow in place from now on."""
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.is_initialized:
            roomy = cache.layers[number] = RoomyLayer()
            roomy.lazy_initialization(layer.keys, layer.values)
            roomy.keys, roomy.values = layer.keys, layer.values


def _append(held_RhCd: Tensor, new_RhTd: Tensor) -> Tensor:
    """Append `new` to `held`, in place if `held` is a view with enough room."""
    (R, heads, C, d), T = held_RhCd.shape, new_RhTd.shape[2]
    if held_RhCd.stride(1) < (C + T) * d:
        places = held_RhCd.new_empty(R, heads, C + T + _ROOM, d)
        places[:, :, :C] = held_RhCd
        held_RhCd = places[:, :, :C]
    both = held_RhCd.as_strided((R, heads, C + T, d), held_RhCd.stride())
    both[:, :, C:] = new_RhTd
    return both
