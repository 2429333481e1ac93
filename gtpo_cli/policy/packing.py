"""Packing the completions of a few prompts into one row without padding that holds each prompt once. Models that
cannot be packed get padded rows.

The completions of a group share their prompt. Under a causal mask the prompt does not see them, so its keys and values
are the same for all. The row is [prompts | completions], and linear layers process only real tokens. Only attention
treats parts differently: a prompt attends to itself, a completion to its prompt and itself. This is exact; only the
order of summation differs from one padded row for each completion.

transformers registers attention functions by name. gtpo's gets the `Packed` batch as a keyword that the model passes to
its layers, and in sampling the `SharedPrompts`. Without them it is plain scaled dot-product attention. Unsloth's
forward has its own keyword for rows that share prompts (`prefix_seg_info`) and a hook for the attention function.
gtpo's goes there; Unsloth's own, which is under the AGPL, is not imported.

Axes: N packed tokens, B prompts, P prompt tokens, R completions, T completion tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from gtpo_cli.errors import EvaluationError, GtpoError, ModelError, out_of_memory
from gtpo_cli.objective.batch import Rows, Unit
from gtpo_cli.policy.shared_prompts import SharedPrompts

ATTENTION = "gtpo_packed"
_FEW_SCORES = 1 << 14  # of a head and a row
# Decoders whose layers mix tokens only in attention, through transformers' attention interface; each has a test.
_ARCHITECTURES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One row of N tokens with the indices of attention's rectangles. Padding of a rectangle points at token 0."""

    ids_N: Tensor
    positions_N: Tensor
    prompt_places_BP: Tensor
    completion_places_RT: Tensor
    prompt_of_R: Tensor  # the prompt of each completion
    mask_R1TK: Tensor  # K = P + T; added to the scores: 0 where a token may attend, else -inf; R may be 1
    unpack_N: Tensor  # position of token n in the flattened rectangles [B*P | R*T]
    predictors_M: Tensor  # the token that predicts each completion token, in order of ids[mask]


def can_pack(config: Any, max_seq_length: int) -> bool:
    """Return whether a model of this configuration can be packed: a known architecture without a sliding window."""
    if config.model_type not in _ARCHITECTURES:
        return False
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    return window is None or window >= max_seq_length


def use_packed_attention(model: Any) -> None:
    """Make `model` attend through `packed_attention` from now on."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)  # for unpacked forwards
    model.set_attn_implementation(ATTENTION)


def use_packed_attention_in_unsloth() -> None:
    """Make models with Unsloth's own forward attend through `attend_packed` when they get a `Packed`."""
    from unsloth.utils import attention_dispatch

    attention_dispatch._flex_shared_prefix_attention = _attend_in_unsloth


def packed_hidden_states(backbone: Any, packed: Packed, *, in_unsloth: bool = False) -> Tensor:
    """Compute the final hidden states (N, H) with packed attention; `in_unsloth`: with Unsloth's own forward."""
    inputs: dict[str, Any] = {"input_ids": packed.ids_N[None], "position_ids": packed.positions_N[None]}
    if in_unsloth:
        inputs |= {"prefix_seg_info": packed}
    else:  # a mask with four axes keeps transformers from building one of N x N
        inputs |= {"attention_mask": packed.mask_R1TK[:1, :, :1, :1], "packed": packed}
    hidden_1NH: Tensor = backbone(**inputs, use_cache=False).last_hidden_state
    return hidden_1NH[0]


def rows_without_gaps(rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the input ids (R, W) of non-empty completions as [prompt | completion | padding], and the predictors.

    The predictors index the flattened (R * W) hidden states in the order of ids[mask]: the hidden state at position p
    predicts the token at p + 1. The last token of a row predicts nothing and is left out.
    """
    real_N = rows.mask_NT.any(dim=-1)
    prompt_R = rows.prompt_N[real_N]
    mask_RT, ids_RT = rows.mask_NT[real_N], rows.ids_NT[real_N]
    prompt_R1 = rows.prompt_mask_BP.sum(dim=-1)[prompt_R, None]
    width = int((prompt_R1[:, 0] + mask_RT.sum(dim=-1)).max()) - 1
    (R, T), P = ids_RT.shape, rows.prompt_ids_BP.shape[-1]
    place_W = torch.arange(width, device=ids_RT.device).expand(R, width)
    from_prompt = rows.prompt_ids_BP[prompt_R].gather(-1, place_W.clamp(max=P - 1))
    from_completion = ids_RT.gather(-1, (place_W - prompt_R1).clamp(0, T - 1))
    ids_RW = torch.where(place_W < prompt_R1, from_prompt, from_completion)
    row_R1 = torch.arange(R, device=ids_RT.device)[:, None]
    places_RT = row_R1 * width + prompt_R1 - 1 + torch.arange(T, device=ids_RT.device)
    return ids_RW, places_RT[mask_RT]


def pack(rows: Rows, *, dtype: torch.dtype) -> Packed:
    """Pack the real tokens of rows, of which at least one is not empty; `dtype` is that of the model's arithmetic.

    A completion's last token predicts nothing and is left out, and so are prompts without completions.
    """
    real_N = rows.mask_NT.any(dim=-1)
    if not bool(real_N.all()):
        rows = rows[real_N.nonzero()[:, 0]]
    prompt_mask = rows.prompt_mask_BP
    B, P = prompt_mask.shape
    prompt_lengths = prompt_mask.sum(dim=1)
    prompt_places = (prompt_mask.flatten().cumsum(0).view(B, P) - 1).masked_fill(~prompt_mask, 0)
    prompt_tokens = int(prompt_lengths.sum())

    fed_NT = rows.mask_NT[:, 1:]  # a token is fed if there is a next one
    continued_N = fed_NT.any(dim=-1)
    prompt_of_R, fed_RT = rows.prompt_N[continued_N], fed_NT[continued_N]
    R, T = fed_RT.shape
    completion_places = (fed_RT.flatten().cumsum(0).view(R, T) - 1 + prompt_tokens).masked_fill(~fed_RT, 0)

    place_P, place_T = (torch.arange(width, device=prompt_mask.device) for width in (P, T))
    ids = torch.cat([rows.prompt_ids_BP[prompt_mask], rows.ids_NT[:, :-1][fed_NT]])
    positions = torch.cat(
        [place_P.expand(B, P)[prompt_mask], (prompt_lengths[prompt_of_R][:, None] + place_T)[fed_RT]],
    )
    flat = torch.arange(B * P + R * T, device=prompt_mask.device)
    unpack = torch.cat([flat[: B * P].view(B, P)[prompt_mask], flat[B * P :].view(R, T)[fed_RT]])
    return Packed(
        ids, positions, prompt_places, completion_places, prompt_of_R,
        mask_R1TK=_mask(prompt_lengths[prompt_of_R], place_P, place_T, dtype),
        unpack_N=unpack,
        predictors_M=_predictors(rows.mask_NT, prompt_lengths.cumsum(0)[rows.prompt_N] - 1, prompt_tokens),
    )  # fmt: skip


def _mask(prompt_lengths_R: Tensor, place_P: Tensor, place_T: Tensor, dtype: torch.dtype) -> Tensor:
    """Build the completions' mask for the scores: the prompt without its padding, and the completion so far."""
    if len(prompt_lengths_R) and bool((prompt_lengths_R == len(place_P)).all()):
        prompt_lengths_R = prompt_lengths_R[:1]  # no padding: one mask serves all rows
    R, P, T = len(prompt_lengths_R), len(place_P), len(place_T)
    prompt_R1P = (place_P < prompt_lengths_R[:, None])[:, None].expand(R, T, P)
    causal_1TT = (place_T <= place_T[:, None])[None].expand(R, T, T)
    may_look = torch.cat([prompt_R1P, causal_1TT], dim=-1)[:, None]
    return torch.zeros(may_look.shape, dtype=dtype, device=place_P.device).masked_fill_(~may_look, float("-inf"))


def _predictors(mask_NT: Tensor, prompt_end_N: Tensor, prompt_tokens: int) -> Tensor:
    """Index the predictors: the prompt's last token predicts a completion's first, and each fed token the next."""
    places_NT = torch.zeros_like(mask_NT, dtype=torch.long)
    places_NT[:, 0] = prompt_end_N
    fed_NT = mask_NT[:, 1:]
    places_NT[:, 1:][fed_NT] = prompt_tokens + torch.arange(int(fed_NT.sum()), device=mask_NT.device)
    return places_NT[mask_NT]


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    packed: Packed | None = None,
    prompts: SharedPrompts | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers calls it, (R, heads, N, d) -> (R, N, heads, d).

    `packed`: a packed row. `prompts`: what the next token of each row also attends to. Without them, as usual.
    """
    if prompts is not None:
        R, heads, _, d = query.shape
        rows = query.view(R, key.shape[1], -1, d)  # the heads that share keys
        return prompts.attend(module.layer_idx, rows, key, value, module.scaling).view(R, 1, heads, d), None
    if packed is None:
        return _attend(module, query, key, value, mask, **rest), None
    return attend_packed(query, key, value, packed, lambda q, k, v, m: _attend(module, q, k, v, m, **rest)), None


def _attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **rest: Any) -> Tensor:
    """Run transformers' attention, (R, heads, T, d) -> (R, T, heads, d).

    If heads share keys and values and there is a mask, transformers copies these for every head, as some GPU kernels
    need. On a CPU this avoids the copies, with the same result.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward as attend

    T, d, dropout, on_cpu = *query.shape[2:], rest.get("dropout", 0.0), query.device.type == "cpu"
    few = T * key.shape[2] <= _FEW_SCORES and (mask is None or mask.is_floating_point())  # a mask of prompts is not
    if on_cpu and few and dropout == 0.0 and _computes_in_16_bits(query):
        return _attend_by_products(query, key, value, mask, rest.get("scaling") or d**-0.5)
    if not on_cpu or mask is None:
        attended: Tensor = attend(module, query, key, value, mask, **rest)[0]
        return attended
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=rest.get("scaling"), enable_gqa=True,
    )  # fmt: skip
    return out.transpose(1, 2).contiguous()


def _computes_in_16_bits(states: Tensor) -> bool:
    """Whether a product of them has 16 bits: their own, or autocast's (rotated states have 32)."""
    kind = states.device.type
    return (torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype).itemsize == 2


def _attend_by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend with two matrix products, (R, heads, T, d) -> (R, T, heads, d). Scores and softmax are in float32.

    With few scores this is faster than torch's kernel in 16 bits on a CPU. A product covers all heads that share keys.
    """
    (R, heads, T, d), (shared, K) = query.shape, key.shape[1:3]
    rows = query.reshape(R, shared, heads // shared * T, d)
    if mask is None:  # causal
        mask = torch.full((1, 1, T, T), float("-inf"), device=query.device).triu_(1)
    with torch.autocast(query.device.type, enabled=False):
        scores = torch.matmul(rows.float() * scale, key.float().transpose(2, 3))
        weights = (scores.view(R, shared, -1, T, K) + mask[:, :, None]).softmax(dim=-1)
    out = torch.matmul(weights.view(R, shared, -1, K).to(value.dtype), value)
    return out.view(R, heads, T, d).transpose(1, 2).contiguous()


def _attend_in_unsloth(
    query: Tensor, key: Tensor, value: Tensor, packed: Packed, *, scale: float | None = None
) -> Tensor:
    """Attend as Unsloth calls it: (1, N, heads, d) -> (1, N, heads, d)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward as attend

    query, key, value = (states.transpose(1, 2) for states in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    module: Any = SimpleNamespace(num_key_value_groups=groups, is_causal=True)  # the attributes it needs
    return attend_packed(query, key, value, packed, lambda q, k, v, m: attend(module, q, k, v, m, scaling=scale)[0])


def attend_packed(query: Tensor, key: Tensor, value: Tensor, packed: Packed, attend: Callable[..., Tensor]) -> Tensor:
    """Compute the attention of a packed row, (1, heads, N, d) -> (1, N, heads, d).

    `attend(query, key, value, mask)` is attention of rectangles, (R, heads, T, d) -> (R, T, heads, d), causal if the
    mask is None.
    """
    query_p, key_p, value_p = (_rectangle(x, packed.prompt_places_BP) for x in (query, key, value))
    out = attend(query_p, key_p, value_p, None).flatten(0, 1)
    if len(packed.prompt_of_R):
        query_c, key_c, value_c = (_rectangle(x, packed.completion_places_RT) for x in (query, key, value))
        key_c = torch.cat([key_p[packed.prompt_of_R], key_c], dim=2)
        value_c = torch.cat([value_p[packed.prompt_of_R], value_c], dim=2)
        out = torch.cat([out, attend(query_c, key_c, value_c, packed.mask_R1TK).flatten(0, 1)])
    return out.index_select(0, packed.unpack_N)[None]


def _rectangle(states_1hNd: Tensor, places_RT: Tensor) -> Tensor:
    """Gather a rectangle, (R, heads, T, d)."""
    (_, heads, _, d), (R, T) = states_1hNd.shape, places_RT.shape
    return states_1hNd[0].index_select(1, places_RT.flatten()).view(heads, R, T, d).transpose(0, 1)


# Tokens of prompts and completions in one forward: of training with micro_batch_size: auto, where they do not change
# gradients, and of measuring entropies.
AUTO_TOKENS = 16_384

Result = TypeVar("Result")


class Budget:
    """A number of completions or tokens that is halved for good whenever memory runs out."""

    def __init__(
        self,
        limit: int,
        *,
        unit: Unit = "completions",
        least: int = 1,
        words: str,
        failure: GtpoError,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`unit` and `words` form the warning 'out of memory: 4 completions at a time from now on ...'.

        `warn` gets it (default: a Python warning). `failure` is raised when memory runs out at the limit `least`.
        """
        self.limit, self.unit = limit, unit
        self._least, self._words, self._failure = least, words, failure
        self.warn = warn or (lambda text: warnings.warn(text, RuntimeWarning, stacklevel=3))

    def __str__(self) -> str:
        return f"{self.limit:,} {self.unit}"

    def run(self, work: Callable[[int], Result], *, at_most: int, least: int | None = None) -> Result:
        """Return `work(limit)`. When memory runs out, free what can be freed and start over with half the limit.

        `at_most`: the total amount of work; the limit itself only changes when memory runs out. `work` must be able to
        start over. `least`: of this work, if not that of the budget. Raises `failure` if not even that fits.
        """
        least = self._least if least is None else least
        while True:
            limit = max(1, min(self.limit, at_most))
            try:
                return work(limit)
            except (RuntimeError, MemoryError) as error:
                if out_of_memory(error) != "the GPU":
                    raise
                if limit <= least:
                    raise self._failure from error
                self.limit = max(least, limit // 2)
                self.warn(f"out of memory: {self} at a time from now on {self._words}")
            # outside the except block, in which the traceback would still hold the tensors
            torch.cuda.empty_cache()


def training_budget(setting: Literal["auto"] | int, *, longest_row: int, warn: Callable[[str], None]) -> Budget:
    """Return the budget for `training.micro_batch_size`, in completions; auto is in tokens.

    `longest_row`: most tokens of prompt and completion together in this run.
    """
    auto = setting == "auto"
    return Budget(
        AUTO_TOKENS if setting == "auto" else setting,
        unit="tokens" if auto else "completions",
        least=longest_row if auto else 1,
        words="in training (same gradient)",
        failure=ModelError(
            "out of memory with a single completion in the forward pass: lower rollout.max_completion_tokens, or "
            "turn on model.gradient_checkpointing or model.load_in_4bit; gtpo plan shows what fits"
        ),
        warn=warn,
    )


def measuring_budget() -> Budget:
    """Return the budget for measuring entropies, in tokens; a policy keeps its own for life."""
    return Budget(
        AUTO_TOKENS,
        unit="tokens",
        words="in measuring",
        failure=EvaluationError(
            "out of memory while measuring the entropy of a single completion: lower rollout.gpu_memory_utilization if "
            "vLLM shares the GPU, or else the completions' length (max_completion_tokens)"
        ),
    )


@torch.no_grad()
def measure_rows(
    rows: Rows, measure: Callable[[Rows], Tensor], budget: Budget, *, packed: bool, each: tuple[int, ...] = ()
) -> Tensor:
    """Return `measure` of every token, float32 (N, T), 0 at padding, with as many rows at a time as fit.

    `each`: the further axes of what it measures. `packed`: as in `Rows.split`. When memory runs out, the rows that were
    measured before stay measured. Raises the budget's `failure` if a single row does not fit.
    """
    values_NT = torch.zeros((*rows.ids_NT.shape, *each), device=rows.ids_NT.device)
    missing_N = torch.ones(len(rows), dtype=torch.bool, device=values_NT.device)

    def work(limit: int) -> None:
        for index in list(rows.split(limit, unit=budget.unit, packed=packed, chosen_N=missing_N)):
            part = measure(rows[index])
            values_NT[index, : part.shape[1]] = part
            missing_N[index] = False

    longest = rows.ids_NT.shape[1] + rows.prompt_ids_BP.shape[1]
    budget.run(work, at_most=rows.size(budget.unit), least=longest if budget.unit == "tokens" else 1)
    return values_NT
