"""Matrix products in float32, from 16-bit factors if the hardware multiplies those faster.

On CUDA the product of 16-bit factors is a float32 without rounding. On a CPU that multiplies bfloat16 it is a bfloat16:
logits are rounded as in the model's own output layer, but sums over them are in float32. Factors of other types are
converted first.
"""

from __future__ import annotations

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
