"""The computation on a row of logits between the two matrix products, as one Triton kernel for CUDA.

The first product gives the float32 logits of a few hundred tokens over the whole vocabulary. The kernel reads each row
twice: once for log-probability and entropy, by running sums as in logprobs.py, and once for the softmax residual,
onehot - p, which the second product turns into the gradient of the hidden state. Residuals have the type of the
factors. If that is float32, they overwrite the logits.

CPU tests compare it with logprobs.py in Triton's interpreter and compile it for six kinds of GPU without spills
(scripts/measure/compile_kernel.py). Axes: N tokens, V vocabulary, H hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gtpo_cli.kernels.logprobs import factor_dtype, matmul

CHUNK_BYTES = 1 << 29  # of float32 logits at a time
_BLOCK = 4096  # logits that a program processes at once


def forward_rows(
    hidden_NH: Tensor,
    lm_head_VH: Tensor,
    bias_V: Tensor | None,
    token_ids_N: Tensor,
    temperature: float,
    out: tuple[Tensor, Tensor, Tensor, Tensor | None],
) -> None:
    """Fill out = (logprobs_N, entropy_N, lse_N, unit_NH or None), float32, as logprobs.py defines them.

    lse: ln sum_v e^(z_v / temperature). unit: d logp / d (hidden / temperature), times the temperature.
    """
    from gtpo_cli.kernels.row_kernel_triton import row_kernel

    logprobs_N, entropy_N, lse_N, unit_NH = out
    (N, _), V = hidden_NH.shape, lm_head_VH.shape[0]
    factors = factor_dtype(hidden_NH.dtype, hidden_NH.device)
    head_VH = lm_head_VH.to(factors)
    rows = max(16, CHUNK_BYTES // (4 * V))
    logits = torch.empty(min(rows, N), V, dtype=torch.float32, device=hidden_NH.device)
    residuals = logits if factors == torch.float32 else torch.empty_like(logits, dtype=factors)
    bias = logits if bias_V is None else bias_V.float().contiguous()
    for start in range(0, N, rows):
        part = slice(start, min(start + rows, N))
        n = part.stop - start
        z, residual = logits[:n], residuals[:n]
        matmul(hidden_NH[part].to(factors), head_VH.T, out=z)
        row_kernel[(n,)](
            z, z.stride(0), residual, residual.stride(0), bias, token_ids_N[part],
            logprobs_N[part], entropy_N[part], lse_N[part], V, 1.0 / temperature,
            HAS_BIAS=bias_V is not None, WITH_RESIDUAL=unit_NH is not None, BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
        if unit_NH is not None:
            matmul(residual, head_VH, out=unit_NH[part])
