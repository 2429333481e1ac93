"""Decode a batch of completions token by token: the protocol and two implementations.

`ModelDecoder` is for any transformers model. transformers copies all keys and values for every token; `RoomyLayer`
reserves room and writes each token in place.

`LeanDecoder` is for the built-in models, where calls cost more than arithmetic. It decodes a token in about fifteen
tensor operations per block of LLaMA: projections of one input are one product, the cache is written in place, and
adapters are merged beforehand. Prompts still go through transformers.

Axes: R rows (completions), C places in the cache, H width of the model, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import linear, pad, silu
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from gtpo_cli.errors import ModelError
from gtpo_cli.policy.tiny import is_builtin
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


OTHER_SAMPLER = "choose another model, or let vLLM sample it (rollout.engine: vllm)"


def cache_of(output: Any, model_type: str) -> tuple[str, Any]:
    """Return the name of the model's argument for its cache, and the cache in its output.

    Raises ModelError if there is none of transformers' own kind.
    """
    for name in ("past_key_values", "cache_params"):
        if isinstance(output.get(name), Cache):
            return name, output[name]
    raise ModelError(
        f"models of type {model_type} return no cache of transformers' own kind, so gtpo cannot sample from them; "
        f"{OTHER_SAMPLER}"
    )


class Prefill:
    """The prompts, each encoded once and repeated for its n rows; left-padded if their lengths differ.

    cache: what the model returned, with the name of the argument that takes it: keys and values, recurrent states, or
    both. hidden: (R, H), the state that predicts the first token. positions: (R,), the first token's position. width:
    tokens of the longest prompt. mask: (R, width), 1 for tokens and 0 for padding; None without padding.
    """

    def __init__(self, policy: TransformersPolicy, prompts: Sequence[Sequence[int]], n: int) -> None:
        self.width = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), self.width, dtype=torch.long)
        mask = torch.zeros(len(prompts), self.width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, self.width - len(prompt) :] = torch.tensor(prompt)
            mask[row, self.width - len(prompt) :] = 1
        # Without a mask, attention takes its fast path.
        padded = not bool(mask.all())
        mask = mask.to(policy.device)
        output = policy.backbone(
            input_ids=ids.to(policy.device),
            attention_mask=mask if padded else None,
            position_ids=(mask.cumsum(dim=-1) - 1).clamp(min=0),
            use_cache=True,
        )
        self.cache_name, self.cache = cache_of(output, policy.backbone.config.model_type)
        repeated = torch.arange(len(prompts), device=policy.device).repeat_interleave(n)
        self.cache.reorder_cache(repeated)
        self.hidden: Tensor = output.last_hidden_state[repeated, -1]
        self.positions = mask.sum(dim=-1)[repeated]
        self.mask = mask[repeated] if padded else None


class ModelDecoder:
    """Implements `Decoder` with the model's own forward pass and cache."""

    def __init__(self, policy: TransformersPolicy, prompts: Sequence[Sequence[int]], n: int) -> None:

        self._backbone, (self._weight, self._bias) = policy.backbone, policy.lm_head
        prefill = Prefill(policy, prompts, n)
        make_room(prefill.cache, policy.dtype)
        self._cache, self._cached = prefill.cache, {prefill.cache_name: prefill.cache}
        # Only attention looks back at padding.
        self._mask = None if all(prefill.cache.is_linear) else prefill.mask
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
            **self._cached,
            use_cache=True,
        )
        self._hidden = output.last_hidden_state[:, -1]
        self._positions = self._positions + 1

    def select(self, keep_R: Tensor) -> None:
        self._cache.reorder_cache(keep_R.nonzero().squeeze(1))
        self._hidden, self._positions = self._hidden[keep_R], self._positions[keep_R]
        if self._mask is not None:
            self._mask = self._mask[keep_R]


_ROOM = 64  # places in a cache beyond what it holds; a full one is copied to a larger tensor


class RoomyLayer(DynamicLayer):  # type: ignore[misc]  # ships untyped
    """One layer, (R, heads, places, d). Its `keys` and `values` are views of the used places."""

    keys: Tensor
    values: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = _append(self.keys, key_states), _append(self.values, value_states)
        return self.keys, self.values


def make_room(cache: Cache, dtype: torch.dtype) -> None:
    """Let the filled layers with full attention grow in place from now on, in the type in which attention computes.

    Under autocast rotated keys come in float32, and attention would convert all of them for every token.
    """
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.is_initialized:
            roomy = cache.layers[number] = RoomyLayer()
            keys, values = layer.keys.to(dtype), layer.values.to(dtype)
            roomy.lazy_initialization(keys, values)
            roomy.keys, roomy.values = keys, values


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


def can_decode(policy: TransformersPolicy) -> bool:
    """Whether the model has the built-in models' architecture, in any size, and weights that this decoder can read."""
    return (
        is_builtin(policy.backbone.config)
        and policy.device.type == "cpu"
        and policy.dtype == torch.float32
        and all(_is_readable(module) for module in policy.backbone.layers.modules())
    )


class LeanDecoder:
    """Implements `gtpo_cli.policy.decoder.Decoder` with the weights at the time of its creation."""

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
        # one per block, (2, R, heads, C, d)
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
        # finished rows stay in the batch for a while and may reach the end of the context
        self._positions = (self._positions + 1).clamp_(max=len(self._cos_sin) - 1)
        self._used += 1

    def select(self, keep_R: Tensor) -> None:
        kept = keep_R.nonzero()[:, 0]  # selecting by index copies whole rows
        self._cache = [cache.index_select(1, kept) for cache in self._cache]
        self._hidden, self._positions = self._hidden[kept], self._positions[kept]
        if self._mask is not None:
            self._mask = self._mask[kept]

    def _direction(self, x_RH: Tensor) -> Tensor:
        """Return x / sqrt(sum x^2 + H eps): RMSNorm without its factor weight * sqrt(H), which `_stacked` applies."""
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
        """Return cosine and sine for every position and each q, k and v head, (positions, 2, heads, d).

        The rotation is x cos + roll(x) sin, so the sine contains the sign of rotate_half. The angle of v is 0.
        """
        cos, sin = backbone.rotary_emb(self._hidden, torch.arange(positions)[None])
        rotated = 2 * self._heads
        angles = torch.zeros(positions, 2, 3 * self._heads, self._d)
        angles[:, 0] = 1.0
        angles[:, 0, :rotated], angles[:, 1, :rotated] = cos[0][:, None], sin[0][:, None]
        angles[:, 1, :, : self._d // 2] *= -1
        return angles


class _Block(NamedTuple):
    """The weights of one block, (inputs, outputs), with the norms' weights and attention's scale multiplied in."""

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
    """Return the weight of a linear layer plus its adapter."""
    weight: Tensor = module.weight
    if hasattr(module, "get_delta_weight") and not module.disable_adapters:
        weight = weight + sum(module.get_delta_weight(name) for name in module.active_adapters)
    return weight


def _stacked(norm_H: Tensor, *weights: Tensor) -> Tensor:
    """Join the weights of layers with the same input, and multiply by the factor of the norm before them."""
    return (torch.cat(weights) * (norm_H * math.sqrt(len(norm_H)))).T.contiguous()


def _is_readable(module: Any) -> bool:
    """Whether the layer's weight matrix can be read: not in 4 bits, and with no unsupported adapter."""
    if hasattr(module, "get_delta_weight"):
        return type(module.get_base_layer()) is Linear and not module.merged and not any(module.use_dora.values())
    return not isinstance(module, Linear) or type(module) is Linear
