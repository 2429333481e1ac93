"""Decoding for the built-in models, where what costs is not the arithmetic but the calls around it.

One token through a block of LLaMA in some fifteen tensor operations: projections of one input are one product,
the cache is written in place, adapters are added to the weights beforehand. transformers makes several times as many
calls for the same arithmetic. Prompts still go through transformers; other models go through `ModelDecoder`.

Axes: R rows (completions), C places in the cache, H width of the model, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import linear, pad, silu

from gtpo_cli.generation.decoder import Prefill
from gtpo_cli.models.tiny import is_builtin
from gtpo_cli.models.transformers_policy import TransformersPolicy

_ROOM = 64  # places the cache gets beyond the prompt; when they are used up it is doubled


def can_decode(policy: TransformersPolicy) -> bool:
    """Whether this is the architecture of the built-in models, of any size, and this decoder can read the weights.

    Others go through their own forward, whatever they look like.
    """
    return (
        is_builtin(policy.backbone.config)
        and policy.device.type == "cpu"
        and policy.dtype == torch.float32
        and all(_is_readable(module) for module in policy.backbone.layers.modules())
    )


class LeanDecoder:
    """Implements `gtpo_cli.generation.decoder.Decoder` with the weights as they are when it is made."""

    def __init__(self, policy: TransformersPolicy, prompts: Sequence[Sequence[int]], n: int) -> None:
        backbone = policy.backbone
        self._embedding, (self._head, _) = backbone.embed_tokens.weight, policy.lm_head
        self._blocks = [_block(layer) for layer in backbone.layers]
        H = backbone.config.hidden_size
        self._norm = backbone.norm.weight * math.sqrt(H)
        self._floor = torch.tensor(math.sqrt(H * backbone.config.rms_norm_eps))
        self._heads, self._d = backbone.config.num_attention_heads, backbone.layers[0].self_attn.head_dim

        prefill = Prefill(policy, prompts, n)
        self._hidden, self._positions, self._used = prefill.hidden, prefill.positions, prefill.width
        # of each block, (2, R, heads, C, d)
        self._cache = [torch.stack((layer.keys, layer.values)) for layer in prefill.cache.layers]
        # -inf at the padding left of short prompts, added to the scores
        self._mask: Tensor | None = None
        if prefill.mask is not None:
            self._mask = torch.zeros(prefill.mask.shape).masked_fill(prefill.mask == 0, float("-inf"))[:, None, None]
        self._make_room()
        self._cos_sin = self._angles(backbone, policy.max_seq_length)

    def logits(self) -> Tensor:
        return linear(self._hidden, self._head)

    def advance(self, token_R: Tensor) -> None:
        R, at, d, heads = len(token_R), self._used, self._d, self._heads
        if at == self._cache[0].shape[3]:
            self._make_room()
        cos, sin = self._cos_sin.index_select(0, self._positions).unbind(1)
        x = self._embedding.index_select(0, token_R)
        for block, cache in zip(self._blocks, self._cache, strict=True):
            qkv = torch.mm(self._direction(x), block.qkv).view(R, 3 * heads, d)
            qkv = torch.addcmul(qkv * cos, qkv.roll(d // 2, dims=-1), sin)
            cache[:, :, :, at] = qkv[:, heads:].view(R, 2, heads, d).transpose(0, 1)
            keys, values = cache[..., : at + 1, :].flatten(1, 2)
            scores = torch.bmm(qkv[:, :heads].reshape(R * heads, 1, d), keys.transpose(1, 2))
            if self._mask is not None:
                scores.view(R, heads, 1, at + 1).add_(self._mask[..., : at + 1])
            seen = torch.bmm(scores.softmax(dim=-1), values)
            x = torch.addmm(x, seen.view(R, -1), block.output)
            gate, up = torch.mm(self._direction(x), block.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, silu(gate) * up, block.down)
        self._hidden = self._direction(x) * self._norm
        # a row that has ended stays in the batch for a while, and may be at the end of the context
        self._positions = (self._positions + 1).clamp_(max=len(self._cos_sin) - 1)
        self._used += 1

    def select(self, keep_R: Tensor) -> None:
        kept = keep_R.nonzero()[:, 0]  # a selection by numbers copies rows whole
        self._cache = [cache.index_select(1, kept) for cache in self._cache]
        self._hidden, self._positions = self._hidden[kept], self._positions[kept]
        if self._mask is not None:
            self._mask = self._mask[kept]

    def _direction(self, x_RH: Tensor) -> Tensor:
        """RMSNorm but for its factor, weight sqrt(H), which is in what follows: x / sqrt(sum x^2 + H eps)."""
        return x_RH / torch.hypot(torch.linalg.vector_norm(x_RH, dim=-1, keepdim=True), self._floor)

    def _make_room(self) -> None:
        more = max(_ROOM, self._used)
        for number, cache in enumerate(self._cache):
            *axes, places, d = cache.shape
            self._cache[number] = cache.new_empty(*axes, places + more, d)
            self._cache[number][..., :places, :] = cache
        if self._mask is not None:
            self._mask = pad(self._mask, (0, more))

    def _angles(self, backbone: Any, positions: int) -> Tensor:
        """Cosine and sine for every position and each q, k and v head, (positions, 2, heads, d); v is not turned.

        x cos + roll(x) sin is the rotation: the sign of rotate_half is in the sine.
        """
        cos, sin = backbone.rotary_emb(self._hidden, torch.arange(positions)[None])
        turned = 2 * self._heads
        angles = torch.zeros(positions, 2, 3 * self._heads, self._d)
        angles[:, 0] = 1.0
        angles[:, 0, :turned], angles[:, 1, :turned] = cos[0][:, None], sin[0][:, None]
        angles[:, 1, :, : self._d // 2] *= -1
        return angles


class _Block(NamedTuple):
    """The weights of one block, (inputs, outputs); those of the norms and attention's scale are in the product."""

    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


def _block(layer: Any) -> _Block:
    attention, mlp = layer.self_attn, layer.mlp
    query = _weight(attention.q_proj) * attention.scaling
    return _Block(
        _stacked(layer.input_layernorm.weight, query, _weight(attention.k_proj), _weight(attention.v_proj)),
        _weight(attention.o_proj).T.contiguous(),
        _stacked(layer.post_attention_layernorm.weight, _weight(mlp.gate_proj), _weight(mlp.up_proj)),
        _weight(mlp.down_proj).T.contiguous(),
    )


def _weight(module: Any) -> Tensor:
    """The weight of a linear layer, its adapter added."""
    weight: Tensor = module.weight
    if hasattr(module, "get_delta_weight") and not module.disable_adapters:
        weight = weight + sum(module.get_delta_weight(name) for name in module.active_adapters)
    return weight


def _stacked(norm_H: Tensor, *weights: Tensor) -> Tensor:
    """Weights of layers of one input as one, the factor of the norm before them multiplied in."""
    return (torch.cat(weights) * (norm_H * math.sqrt(len(norm_H)))).T.contiguous()


def _is_readable(module: Any) -> bool:
    """False for a layer whose product is not that of a weight matrix in reach: 4-bit, or an adapter of another kind."""
    if hasattr(module, "get_delta_weight"):
        return type(module.get_base_layer()) is Linear and not module.merged and not any(module.use_dora.values())
    return not isinstance(module, Linear) or type(module) is Linear
