"""Prepacked weights: copies of a model's linear weights in the layout of the processor's matrix products.

For a few rows, a product takes little longer than reading the weights, and torch's libraries arrange these anew for
every product. While completions are sampled the weights stay the same, so they are arranged once, with the operations
of oneDNN with which torch's inductor prepacks frozen weights. The products are the same up to rounding.

A float32 copy has the adapter merged in. In bfloat16 a merged weight is rounded to 8 bits, and then the sampler's
distribution is three times as far from the policy's (SmolLM2-135M after SFT: 0.039 nats in place of 0.013). So there
the adapter stays two small products in its own type, as in PEFT.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from gtpo_cli.kernels.logprobs import factor_dtype
from gtpo_cli.policy.transformers_policy import TransformersPolicy

_LEAST = 1 << 16  # weights of a layer; calls of oneDNN take longer than what smaller ones gain
_MOST_BYTES = 4 << 30  # of copies; a larger model multiplies its weights as they are

Product = Callable[[Tensor], Tensor]  # of (..., inputs) with a layer's weight


def prepack(weight: Tensor, bias: Tensor | None = None, *, dtype: torch.dtype, rows: int) -> Product:
    """Return the product x W^T + bias in `dtype`, without gradient.

    `rows`: about as many are multiplied at a time; the layout depends on it.
    """
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), rows)
    bias = None if bias is None else bias.detach().to(dtype)

    def product(x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x.to(dtype), packed, bias, "none", [], "")
        return out

    return product


def prepacked(policy: TransformersPolicy, rows: int) -> tuple[Any, Product]:
    """Return the policy's decoder and output layer with prepacked weights, as they are now; all else is shared.

    They are the policy's own on a GPU, without oneDNN, in a type that this processor does not multiply, beyond 4 GiB of
    copies, and if no layer is large.
    """
    head, dtype = policy.lm_head, policy.dtype
    layers = [layer for layer in plain_layers(policy.backbone) if base_of(layer).weight.numel() >= _LEAST]
    size = sum(base_of(layer).weight.numel() for layer in layers) + head[0].numel()
    multiplies = dtype in (torch.float32, torch.bfloat16) and factor_dtype(dtype, policy.device) == dtype
    packs = policy.device.type == "cpu" and torch.backends.mkldnn.is_available() and multiplies  # type: ignore[no-untyped-call]
    if not packs or not layers or size * dtype.itemsize > _MOST_BYTES:
        return policy.backbone, partial(linear, weight=head[0], bias=head[1])
    pack = partial(prepack, dtype=dtype, rows=rows)
    shared = (policy.backbone.config, *policy.backbone.parameters(), *policy.backbone.buffers())
    memo: dict[int, Any] = {id(each): each for each in shared}
    for layer in layers:
        twin = memo[id(layer)] = copy.copy(layer)
        twin.forward = _product(layer, pack, merge=dtype == torch.float32)
    return copy.deepcopy(policy.backbone, memo), pack(*head)


def _product(layer: Any, pack: Callable[..., Product], *, merge: bool) -> Product:
    """Return what a linear layer computes with its adapters, merged into its weight or beside it."""
    base, names = base_of(layer), active_adapters(layer)
    if merge or not names:
        return pack(merged_weight(layer), base.bias)
    product = pack(base.weight, base.bias)
    adapters = [(layer.lora_A[name].weight, layer.lora_B[name].weight * layer.scaling[name]) for name in names]

    def with_adapters(x: Tensor) -> Tensor:
        out = product(x)
        deltas = (linear(linear(x.to(down.dtype), down), up) for down, up in adapters)
        return sum(deltas, start=out).to(out.dtype)

    return with_adapters


# -- linear layers with and without an adapter ------------------------------------------------------------------------


def plain_layers(model: nn.Module) -> list[Any]:
    """List the linear layers with weights that can be read, each with its plain adapters; none that are in 4 bits."""
    layers = [module for module in model.modules() if is_plain(module)]
    inside = {part for layer in layers for part in layer.modules() if part is not layer}
    return [layer for layer in layers if layer not in inside]


def is_plain(module: Any) -> bool:
    if hasattr(module, "get_delta_weight"):
        return type(module.get_base_layer()) is nn.Linear and not module.merged and not any(module.use_dora.values())
    return type(module) is nn.Linear


def base_of(layer: Any) -> nn.Linear:
    base: nn.Linear = layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer
    return base


def active_adapters(layer: Any) -> list[str]:
    return list(layer.active_adapters) if hasattr(layer, "get_delta_weight") and not layer.disable_adapters else []


def merged_weight(layer: Any) -> Tensor:
    """Return the weight of a linear layer plus its adapters."""
    deltas = (layer.get_delta_weight(name) for name in active_adapters(layer))
    return sum(deltas, start=base_of(layer).weight)
