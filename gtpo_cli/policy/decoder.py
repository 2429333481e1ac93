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
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import linear, pad, silu
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from gtpo_cli.errors import ModelError
from gtpo_cli.policy.prepacked import is_plain, merged_weight, prepacked
from gtpo_cli.policy.shared_prompts import SharedPrompts
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


_SHARED_BEGINNING = 16  # tokens from which on a forward of their own is worth it


class Prefill:
    """The prompts, each encoded once for its n rows; if their lengths differ, padding stands left of where they differ.

    once: the model mixes tokens only in attention, so the tokens with which all prompts begin can be encoded once for
    all of them (a system prompt is most of many prompts).

    cache: what the model returned for the prompts, with the name of the argument that takes it: keys and values,
    recurrent states, or both. mask: (B, P), 1 for tokens and 0 for padding; None without padding. Of the R = B * n
    rows: prompt_R, hidden (R, H), the state that predicts the first token, and positions (R,), that token's.
    """

    def __init__(
        self, backbone: Any, device: torch.device, prompts: Sequence[Sequence[int]], n: int, *, once: bool = False
    ) -> None:
        shared = _shared_beginning(prompts) if once else 0
        width = max(len(prompt) for prompt in prompts)
        ids, mask = (torch.zeros(len(prompts), width, dtype=torch.long) for _ in range(2))
        for row, prompt in enumerate(prompts):
            places = [*range(shared), *range(width - len(prompt) + shared, width)]
            ids[row, places], mask[row, places] = torch.tensor(prompt), 1
        ids, mask = ids.to(device), mask.to(device)
        self.mask = None if bool(mask.all()) else mask  # without a mask, attention takes its fast path
        more: dict[str, Any] = {}
        if shared:
            name, cache = cache_of(backbone(input_ids=ids[:1, :shared], use_cache=True), backbone.config.model_type)
            cache.batch_repeat_interleave(len(prompts))
            more[name] = cache
        output = backbone(
            input_ids=ids[:, shared:],
            attention_mask=self.mask,
            position_ids=(mask.cumsum(dim=-1) - 1).clamp(min=0)[:, shared:],
            **more,
            use_cache=True,
        )
        self.cache_name, self.cache = cache_of(output, backbone.config.model_type)
        self.prompt_R = torch.arange(len(prompts), device=device).repeat_interleave(n)
        self.hidden: Tensor = output.last_hidden_state[self.prompt_R, -1]
        self.positions = mask.sum(dim=-1)[self.prompt_R]

    def take_prompts(self, dtype: torch.dtype) -> SharedPrompts:
        """Move the prompts' keys and values out of the cache, so that it will hold only the rows' own."""
        shared = []
        for layer in self.cache.layers:
            shared.append((layer.keys.to(dtype), layer.values.to(dtype)))
            layer.keys, layer.values = layer.keys[:, :, :0], layer.values[:, :, :0]
        return SharedPrompts(shared, self.mask, self.prompt_R)


def _shared_beginning(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all prompts begin with, short of the last token of any; 0 for few."""
    alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*(prompt[:-1] for prompt in prompts), strict=False))
    shared = sum(1 for _ in alike)
    return shared if len(prompts) > 1 and shared >= _SHARED_BEGINNING else 0


class ModelDecoder:
    """Implements `Decoder` with the model's own forward pass and cache, and its weights at the time of its creation."""

    def __init__(self, policy: TransformersPolicy, prompts: Sequence[Sequence[int]], n: int) -> None:
        self._backbone, self._head = prepacked(policy, n * len(prompts))
        on_cpu = policy.packs and policy.device.type == "cpu"
        prefill = Prefill(self._backbone, policy.device, prompts, n, once=on_cpu)
        cache = self._cache = prefill.cache
        self._more: dict[str, Any] = {prefill.cache_name: cache}  # arguments of the model
        self._prompts: SharedPrompts | None = None
        self._mask: Tensor | None = None
        if on_cpu:
            self._prompts = self._more["prompts"] = prefill.take_prompts(policy.dtype)
        else:
            cache.reorder_cache(prefill.prompt_R)
            if prefill.mask is not None and not all(cache.is_linear):  # only attention looks back at padding
                self._mask = prefill.mask[prefill.prompt_R]
        make_room(cache, policy.dtype)
        self._hidden, self._positions = prefill.hidden, prefill.positions
        self._last = policy.max_seq_length - 1

    def logits(self) -> Tensor:
        return self._head(self._hidden).float()

    def advance(self, token_R: Tensor) -> None:
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(token_R), 1)], dim=1)
        output = self._backbone(
            input_ids=token_R[:, None],
            attention_mask=self._mask,
            position_ids=self._positions[:, None],
            **self._more,
            use_cache=True,
        )
        self._hidden = output.last_hidden_state[:, -1]
        # finished rows stay for a while, and beyond the context they would change what others see (longrope)
        self._positions = (self._positions + 1).clamp(max=self._last)

    def select(self, keep_R: Tensor) -> None:
        self._cache.reorder_cache(keep_R.nonzero().squeeze(1))
        self._hidden, self._positions = self._hidden[keep_R], self._positions[keep_R]
        if self._prompts is not None:
            self._prompts.select(keep_R)
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
    """Append `new` to `held`, in place if `held` is a view with enough room. An empty one may have other rows."""
    (R, heads, T, d), C = new_RhTd.shape, held_RhCd.shape[2]
    if C == 0 or held_RhCd.stride(1) < (C + T) * d:
        places = held_RhCd.new_empty(R, heads, C + T + _ROOM, d)
        if C > 0:
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
        and all(
            is_plain(module)
            for module in policy.backbone.layers.modules()
            if isinstance(module, Linear) or hasattr(module, "get_delta_weight")
        )
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

        prefill = Prefill(backbone, policy.device, prompts, n, once=True)
        prefill.cache.reorder_cache(prefill.prompt_R)
        self._hidden, self._positions = prefill.hidden, prefill.positions
        # one per block, (2, R, heads, C, d)
        self._cache = [torch.stack((layer.keys, layer.values)) for layer in prefill.cache.layers]
        self._used = self._cache[0].shape[3]
        # -inf at the padding left of short prompts, added to the scores
        self._mask: Tensor | None = None
        if prefill.mask is not None:
            padding = prefill.mask[prefill.prompt_R] == 0
            self._mask = torch.zeros(padding.shape).masked_fill(padding, float("-inf"))[:, None, None]
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
        for number, cache in enumerate(self._cache):  # within the room that there is
            self._cache[number] = cache[:, : len(kept)]
            self._cache[number][..., : self._used, :] = cache[..., : self._used, :].index_select(1, kept)
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
    query = merged_weight(attention.q_proj) * attention.scaling
    return _Block(
        _stacked(layer.input_layernorm.weight, query, merged_weight(attention.k_proj), merged_weight(attention.v_proj)),
        merged_weight(attention.o_proj).T.contiguous(),
        _stacked(layer.post_attention_layernorm.weight, merged_weight(mlp.gate_proj), merged_weight(mlp.up_proj)),
        merged_weight(mlp.down_proj).T.contiguous(),
    )


def _stacked(norm_H: Tensor, *weights: Tensor) -> Tensor:
    """Join the weights of layers with the same input, and multiply by the factor of the norm before them."""
    return (torch.cat(weights) * (norm_H * math.sqrt(len(norm_H)))).T.contiguous()
