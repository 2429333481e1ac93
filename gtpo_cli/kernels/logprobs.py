"""From final hidden states to token log-probabilities and entropies without ever holding the logits.

Axes: N tokens flattened, V vocabulary, H hidden width.

Departures from the textbook (log_softmax over full logits, autograd behind it):
- The vocabulary is walked in blocks with a running maximum, as flash attention walks keys. While a block's
  exponentials E exist, E @ W_block is added to the gradient accumulator. So the logits are computed once, no more than
  one block of them exists, and the gradient with respect to the hidden states is ready when the forward pass ends:
      d logp_t / d h_t = (W[token_t] - softmax(h_t W^T) W) / temperature          (docs/objective.md, section 11)
  One (N, H) tensor is kept for it; backward only scales its rows.
- On CUDA products of whole rows are faster. A Triton kernel processes the rows between them (row_kernel.py).
- The sampled token is kept out of the running sum: log p = -softplus(logsumexp(others) - z_token), and
  1 - p = -expm1(log p). For a confident token the direct 1 - p is rounding noise; this keeps its gradient exact.

Products are in float32, from 16-bit factors if the hardware multiplies those faster. On CUDA the product of 16-bit
factors is a float32 without rounding. On a CPU that multiplies bfloat16 it is a bfloat16: logits are rounded as in the
model's own output layer, but sums over them are in float32. Factors of other types are converted first.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor


def factor_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type in which factors of this type are multiplied here: their own, or float32."""
    if dtype == torch.float64:
        return dtype
    narrow = dtype in (torch.bfloat16, torch.float16) if device.type == "cuda" else _multiplies_bfloat16(dtype, device)
    return dtype if narrow else torch.float32


def _multiplies_bfloat16(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and dtype == torch.bfloat16 and torch.cpu._is_avx512_bf16_supported()


def matmul(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """Compute out = a b, with `out` in float32 (float64 for float64 factors)."""
    if a.dtype == out.dtype:
        return torch.mm(a, b, out=out)
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=out.dtype, out=out)
    return out.copy_(a @ b)


def add_matmul(acc: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Compute acc += a b. `b` is given in float32 and multiplied in the type of `a`."""
    if a.dtype == acc.dtype:
        return torch.addmm(acc, a, b, out=acc)
    if a.device.type == "cuda":  # not addmm, which in torch 2.9 needs `acc` in the factors' type
        return acc.add_(torch.mm(a, b.to(a.dtype), out_dtype=acc.dtype))
    return acc.add_(a @ b.to(a.dtype))


# Block of the vocabulary: W's block and the block of exponentials should stay in cache, but the matrix products should
# stay long. On a CPU with 1 MiB L2 per core the speed is flat between 256 and 2048 (docs/benchmarks.md).
_VOCAB_BLOCK = 1024
_SLICE = 1 << 17  # numbers to process at a time between two matrix products, so that they stay in cache
_MAX_CHUNK_TOKENS = 4096
_OUT = -1e30  # logit of a token taken out of a sum: its exponential is exactly 0, and 0 * _OUT is finite


def token_logprobs_and_entropy(
    hidden_NH: Tensor,
    lm_head_VH: Tensor,
    token_ids_N: Tensor,
    *,
    bias_V: Tensor | None = None,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    trained_N: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the log-probability of each given token and the entropy of the distribution at its position.

        logits = (hidden @ lm_head^T + bias) / temperature,   p = softmax(logits) over the whole vocabulary
        logprobs_t = ln p[token_t]     entropy_t = -sum_v p_v ln p_v     (Section 4.2; docs/objective.md, section 5)

    Args:
        hidden_NH: final hidden states, any floating dtype, (N, H). Gets a gradient.
        lm_head_VH: output embedding, (V, H). If it requires a gradient, the blocks are computed once more in backward;
            if it is frozen (LoRA on the projections), the logits are computed only once.
        token_ids_N: integer ids in [0, V), (N,).
        bias_V: bias of the output layer, (V,), or None; minus infinity takes a token out of the vocabulary.
        temperature: > 0; the sampling temperature.
        chunk_tokens: tokens processed at a time; None chooses. Changes memory and time, not the result.
        trained_N: bool; where it is False the log-probability is detached, which saves the work for its gradient.
    Returns:
        logprobs_N <= 0 in nats, with gradient, and entropy_N in [0, ln V] in nats, detached. Both float32
        (float64 for float64 hidden states), which is also the type of all sums.
    Raises:
        ValueError: shapes that do not fit, a temperature that is not positive, or an id outside the vocabulary.
    """
    N, H = hidden_NH.shape
    V = lm_head_VH.shape[0]
    if lm_head_VH.shape[1] != H or token_ids_N.shape != (N,) or (bias_V is not None and bias_V.shape != (V,)):
        raise ValueError(
            f"shapes do not fit: hidden {tuple(hidden_NH.shape)}, lm_head {tuple(lm_head_VH.shape)}, "
            f"token_ids {tuple(token_ids_N.shape)}, bias {None if bias_V is None else tuple(bias_V.shape)}"
        )
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if chunk_tokens is not None and chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    if N and not 0 <= int(token_ids_N.min()) <= int(token_ids_N.max()) < V:
        raise ValueError(f"token ids must be in [0, {V}), got {int(token_ids_N.min())} to {int(token_ids_N.max())}")
    chunk = chunk_tokens or _MAX_CHUNK_TOKENS
    if trained_N is not None and not bool(trained_N.all()):

        def part(rows_N: Tensor) -> tuple[Tensor, Tensor]:
            return token_logprobs_and_entropy(
                hidden_NH[rows_N], lm_head_VH, token_ids_N[rows_N],
                bias_V=bias_V, temperature=temperature, chunk_tokens=chunk_tokens,
            )  # fmt: skip

        with torch.no_grad():
            others = part(~trained_N)
        zeros_N = others[0].new_zeros(N)
        logp_N, H_N = (
            zeros_N.masked_scatter(trained_N, ours).masked_scatter(~trained_N, theirs)
            for ours, theirs in zip(part(trained_N), others, strict=True)
        )
        return logp_N, H_N
    ids_N = token_ids_N.long()  # as an index, a uint8 tensor would be read as a mask
    outputs: tuple[Tensor, Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]  # torch ships it untyped
        hidden_NH, lm_head_VH, bias_V, ids_N, float(temperature), chunk
    )
    return outputs


def _finite(bias_V: Tensor, temperature: float) -> Tensor:
    """Replace minus infinity by `_OUT`, which also removes a token from the vocabulary but gives no NaN in products."""
    return bias_V.clamp(min=_OUT * min(1.0, temperature))


def has_row_kernel(device: torch.device) -> bool:
    """Return whether the Triton kernel of row_kernel.py runs on this device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        lm_head_VH: Tensor,
        bias_V: Tensor | None,
        token_ids_N: Tensor,
        temperature: float,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if hidden_NH.dtype == torch.float64 else torch.float32
        N, H = hidden_NH.shape
        logprobs_N = torch.empty(N, dtype=dtype, device=hidden_NH.device)
        entropy_N, lse_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
        wants_hidden, wants_head, wants_bias = ctx.needs_input_grad[:3]
        unit_NH = torch.empty(N, H, dtype=dtype, device=hidden_NH.device) if wants_hidden else None
        forward_chunk = _forward_chunk
        if dtype == torch.float32 and has_row_kernel(hidden_NH.device):
            from gtpo_cli.kernels.row_kernel import forward_rows as forward_chunk
        for start in range(0, N, chunk_tokens):
            rows = slice(start, min(start + chunk_tokens, N))
            forward_chunk(
                hidden_NH[rows],
                lm_head_VH,
                None if bias_V is None else _finite(bias_V.to(dtype), temperature),
                token_ids_N[rows],
                temperature,
                (logprobs_N[rows], entropy_N[rows], lse_N[rows], None if unit_NH is None else unit_NH[rows]),
            )
        if bias_V is not None:
            logprobs_N.masked_fill_(bias_V[token_ids_N].isneginf(), -torch.inf)
        if unit_NH is not None:
            unit_NH /= temperature
        trains_head = wants_head or wants_bias
        ctx.save_for_backward(
            unit_NH, token_ids_N, *((hidden_NH, lm_head_VH, bias_V, lse_N, logprobs_N) if trains_head else ())
        )
        ctx.temperature, ctx.hidden_dtype = temperature, hidden_NH.dtype
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        unit_NH, token_ids_N, *head = ctx.saved_tensors
        grad_hidden = None if unit_NH is None else (unit_NH * grad_N[:, None]).to(ctx.hidden_dtype)
        grad_head = grad_bias = None
        if head:
            hidden_NH, lm_head_VH, bias_V, lse_N, logprobs_N = head
            grad_head, grad_bias = _head_gradients(
                grad_N, hidden_NH, lm_head_VH, bias_V, lse_N, logprobs_N, token_ids_N, ctx.temperature
            )
            grad_bias = grad_bias if ctx.needs_input_grad[2] else None
            grad_head = grad_head if ctx.needs_input_grad[1] else None
        return grad_hidden, grad_head, grad_bias, None, None, None


def _forward_chunk(
    hidden_NH: Tensor,
    lm_head_VH: Tensor,
    bias_V: Tensor | None,
    token_ids_N: Tensor,
    temperature: float,
    out: tuple[Tensor, Tensor, Tensor, Tensor | None],
) -> None:
    """Make one pass over the vocabulary for the rows of a chunk; `out` has the type of the sums.

    Blocks of logits are laid out as (vocabulary, tokens), in which matrix products are faster on a CPU.
    """
    logprobs_N, entropy_N, lse_N, unit_NH = out
    (N, H), V, dtype = hidden_NH.shape, lm_head_VH.shape[0], logprobs_N.dtype
    factors = factor_dtype(hidden_NH.dtype, hidden_NH.device)
    hidden_HN = hidden_NH.to(factors).T.contiguous()
    others = _Others(logprobs_N.new_empty(H, N), with_gradient=unit_NH is not None)
    z_token = torch.zeros_like(logprobs_N)
    buffer = logprobs_N.new_empty(N * min(_VOCAB_BLOCK, V))
    order = torch.argsort(token_ids_N)  # so that each block finds its sampled tokens in one slice
    edges = torch.searchsorted(token_ids_N[order], torch.arange(0, V + _VOCAB_BLOCK, _VOCAB_BLOCK, device=order.device))
    bounds: list[int] = edges.tolist()
    for index, start in enumerate(range(0, V, _VOCAB_BLOCK)):
        W = lm_head_VH[start : start + _VOCAB_BLOCK].to(factors)
        z = matmul(W, hidden_HN, out=buffer[: N * W.shape[0]].view(W.shape[0], N))
        if bias_V is not None:
            z += bias_V[start : start + _VOCAB_BLOCK, None]
        if temperature != 1.0:
            z /= temperature
        here = order[bounds[index] : bounds[index + 1]]
        row = token_ids_N[here] - start
        z_token[here] = z[row, here]
        z[row, here] = _OUT
        others.add(z, W)
    lse_others = others.m + others.s.log()
    logp = -torch.logaddexp(torch.zeros_like(z_token), lse_others - z_token)  # -softplus, without its cut-off at 20
    lse = torch.logaddexp(lse_others, z_token)
    p_scale = (others.m - lse).exp()  # e^(z - m) * p_scale is the probability of another token
    logprobs_N.copy_(logp)
    lse_N.copy_(lse)
    # H = -p ln p of the sampled token + sum over others of p_v (lse - z_v): no term is negative, nothing cancels.
    entropy_N.copy_(-logp.exp() * logp + p_scale * ((lse - others.m) * others.s - others.u))
    if unit_NH is not None and others.acc_HN is not None:
        one_minus_p = -torch.expm1(logp)
        torch.mul(others.acc_HN.T, -p_scale[:, None], out=unit_NH)
        unit_NH.addcmul_(one_minus_p[:, None], lm_head_VH[token_ids_N].to(dtype))


class _Others:
    """Running values over the vocabulary other than the sampled token, relative to the running maximum m:

    s = sum e^(z-m),   u = sum e^(z-m) (z-m),   acc = sum e^(z-m) W.
    """

    def __init__(self, like_HN: Tensor, *, with_gradient: bool) -> None:
        N = like_HN.shape[1]
        self.m = like_HN.new_full((N,), _OUT)
        self.s, self.u = torch.zeros_like(self.m), torch.zeros_like(self.m)
        self.acc_HN = torch.zeros_like(like_HN) if with_gradient else None
        self._rows = max(1, _SLICE // max(1, N))
        self._slice = like_HN.new_empty(self._rows * N)

    def add(self, z_VN: Tensor, W_VH: Tensor) -> None:
        """Add a block of logits, which is overwritten, and its rows of the output embedding."""
        m_new = torch.maximum(self.m, z_VN.amax(dim=0))
        shift = self.m - m_new
        shrink = shift.exp()
        # factor that rescales earlier values to the new maximum; 0 while s is 0
        self.u = torch.where(self.s > 0, shrink * (self.u + shift * self.s), 0.0)
        self.s = self.s * shrink
        self.m = m_new
        for z in torch.split(z_VN, self._rows):  # pieces that stay in cache
            z -= m_new
            product = self._slice[: z.numel()].view(z.shape).copy_(z)
            z.exp_()
            self.s += z.sum(dim=0)
            self.u += product.mul_(z).sum(dim=0)
        if self.acc_HN is not None:
            add_matmul(self.acc_HN.mul_(shrink), W_VH.T, z_VN)


def _head_gradients(
    grad_N: Tensor,
    hidden_NH: Tensor,
    lm_head_VH: Tensor,
    bias_V: Tensor | None,
    lse_N: Tensor,
    logprobs_N: Tensor,
    token_ids_N: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor | None]:
    """Compute the gradients of the output layer, sum_t grad_t (onehot_t - p_t) h_t^T, recomputing the blocks' p.

    Blocks are laid out as in `_forward_chunk`. float16 factors would lose small gradients, so they become float32.
    """
    dtype, (N, H), V = lse_N.dtype, hidden_NH.shape, lm_head_VH.shape[0]
    factors = torch.float32 if hidden_NH.dtype == torch.float16 else factor_dtype(hidden_NH.dtype, hidden_NH.device)
    hidden_NH = hidden_NH.to(factors)
    hidden_HN = hidden_NH.T.contiguous()
    grad_head = torch.empty(V, H, dtype=dtype, device=lm_head_VH.device)
    grad_bias = None if bias_V is None else torch.empty(V, dtype=dtype, device=bias_V.device)
    buffer = lse_N.new_empty(N * min(_VOCAB_BLOCK, V))
    scale_N = grad_N / -temperature
    for start in range(0, V, _VOCAB_BLOCK):
        block = slice(start, min(start + _VOCAB_BLOCK, V))
        W = lm_head_VH[block].to(factors)
        z = matmul(W, hidden_HN, out=buffer[: N * W.shape[0]].view(W.shape[0], N))
        if bias_V is not None:
            z += bias_V[block].to(dtype)[:, None]
        if temperature != 1.0:
            z /= temperature
        p_VN = z.sub_(lse_N).exp_()
        here = ((token_ids_N >= block.start) & (token_ids_N < block.stop)).nonzero().squeeze(1)
        p_VN[token_ids_N[here] - start, here] = torch.expm1(logprobs_N[here])  # p - 1, exact for a confident token
        p_VN *= scale_N
        matmul(p_VN.to(factors), hidden_NH, out=grad_head[block])
        if grad_bias is not None:
            grad_bias[block] = p_VN.sum(dim=1)
    bias_grad = None if grad_bias is None or bias_V is None else grad_bias.to(bias_V.dtype)
    return grad_head.to(lm_head_VH.dtype), bias_grad
