"""The Triton part of row_kernel.py, in its own module so that only launching it needs Triton."""

# Triton ships without types, and its language is not Python's: numbers are tensors, `range` is a loop on the device.
# mypy: ignore-errors

import triton
import triton.language as tl

_OUT = tl.constexpr(-1e30)  # a logit that counts in no sum


@triton.jit
def _block(row_ptr, bias_ptr, at, V, inverse_temperature, HAS_BIAS: tl.constexpr):
    """Load logits / temperature at these positions, 0 beyond the vocabulary."""
    z = tl.load(row_ptr + at, mask=at < V, other=0.0)
    if HAS_BIAS:
        z += tl.load(bias_ptr + at, mask=at < V, other=0.0)
    return z * inverse_temperature


@triton.jit
def row_kernel(
    logits_ptr, logits_stride, residual_ptr, residual_stride, bias_ptr, token_ids_ptr,
    logprobs_ptr, entropy_ptr, lse_ptr, V, inverse_temperature,
    HAS_BIAS: tl.constexpr, WITH_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process one token a program. The sampled token stays out of the sums, so 1 - p is exact if p is nearly 1."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * logits_stride
    token = tl.load(token_ids_ptr + row)
    z_token = tl.load(row_ptr + token)
    if HAS_BIAS:
        z_token += tl.load(bias_ptr + token)
    z_token *= inverse_temperature

    # For each lane, relative to its running maximum m: s = sum e^(z-m), u = sum e^(z-m) (z-m)
    m = tl.full([BLOCK], _OUT, dtype=tl.float32)
    s = tl.zeros([BLOCK], dtype=tl.float32)
    u = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, V, BLOCK):
        at = start + tl.arange(0, BLOCK)
        other = (at < V) & (at != token)
        z = tl.where(other, _block(row_ptr, bias_ptr, at, V, inverse_temperature, HAS_BIAS), _OUT)
        m_new = tl.maximum(m, z)
        shift = m - m_new
        shrink = tl.exp(shift)
        e = tl.where(other, tl.exp(z - m_new), 0.0)
        u = shrink * (u + shift * s) + tl.where(other, e * (z - m_new), 0.0)
        s = s * shrink + e
        m = m_new
    # combine the lanes
    M = tl.max(m, axis=0)
    shift = m - M
    shrink = tl.exp(shift)
    U = tl.sum(shrink * (u + shift * s), axis=0)
    S = tl.sum(shrink * s, axis=0)

    others = M + tl.log(S)  # ln (sum of the others' e^z)
    difference = others - z_token  # logp = -softplus of it
    x = tl.exp(-tl.abs(difference))
    log1p = tl.where(x < 0.01, x - x * x / 2 + x * x * x / 3, tl.log(1.0 + x))
    logp = -(tl.maximum(difference, 0.0) + log1p)
    lse = tl.maximum(others, z_token) + log1p
    entropy = -tl.exp(logp) * logp + tl.exp(M - lse) * ((lse - M) * S - U)
    tl.store(logprobs_ptr + row, logp)
    tl.store(entropy_ptr + row, entropy)
    tl.store(lse_ptr + row, lse)

    if WITH_RESIDUAL:
        one_minus_p = tl.where(difference > 0, 1.0 / (1.0 + x), x / (1.0 + x))
        for start in range(0, V, BLOCK):
            at = start + tl.arange(0, BLOCK)
            z = _block(row_ptr, bias_ptr, at, V, inverse_temperature, HAS_BIAS)
            residual = tl.where(at == token, one_minus_p, -tl.exp(z - lse))
            target = residual_ptr + row * residual_stride + at
            tl.store(target, residual.to(residual_ptr.dtype.element_ty), mask=at < V)
