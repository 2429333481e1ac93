"""The Triton kernel, in Triton's interpreter on a CPU, against the torch path and against float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gtpo_cli.kernels import logprobs, row_kernel, token_logprobs_and_entropy

pytest.importorskip("triton", reason="Triton comes with the extra dev on Linux")


pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="runs in the interpreter; tests/gpu has the rest")


@pytest.fixture
def by_kernel(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """token_logprobs_and_entropy goes through the kernel, as on CUDA, in several chunks and blocks."""
    monkeypatch.setattr(logprobs, "has_row_kernel", lambda device: True)
    monkeypatch.setattr(row_kernel, "_BLOCK", 256)
    monkeypatch.setattr(row_kernel, "CHUNK_BYTES", 4 * 1000 * 20)  # 20 rows of 1000
    return monkeypatch


def case(N: int = 50, V: int = 1000, H: int = 32, spread: float = 3.0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, H, generator=generator)
    head = torch.randn(V, H, generator=generator) * (spread / math.sqrt(H))
    ids = torch.randint(0, V, (N,), generator=generator)
    ids[:3] = torch.tensor([0, V - 1, min(V - 1, 256)])  # at the edges of blocks
    return hidden, head, torch.randn(V, generator=generator), ids, torch.randn(N, generator=generator)


def both(path_inputs: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch, **options: object) -> list[tuple]:
    """(logp, entropy, gradients) by the kernel and by the torch path."""
    hidden, head, bias, ids, send = path_inputs
    results = []
    for use in (True, False):
        monkeypatch.setattr(logprobs, "has_row_kernel", lambda device, use=use: use)
        leaves = [part.clone().requires_grad_() for part in (hidden, head, bias)]
        logp, entropy = token_logprobs_and_entropy(leaves[0], leaves[1], ids, bias_V=leaves[2], **options)
        results.append((logp.detach(), entropy, torch.autograd.grad(logp, leaves, send)))
    return results


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_it_gives_what_the_torch_path_gives(by_kernel: pytest.MonkeyPatch, temperature: float) -> None:
    ours, torchs = both(case(), by_kernel, temperature=temperature)
    torch.testing.assert_close(ours[0], torchs[0], rtol=2e-6, atol=1e-7)
    torch.testing.assert_close(ours[1], torchs[1], rtol=2e-6, atol=2e-6)
    for kernel, path in zip(ours[2], torchs[2], strict=True):
        assert (kernel - path).norm() <= 2e-6 * path.norm()


def test_confident_tokens_keep_their_gradient(by_kernel: pytest.MonkeyPatch) -> None:
    """1 - p from a half down to 1e-15: against float64 with the sampled token out of the sum."""
    _, head, _, ids, _ = case(N=40, V=1000, H=64)
    hidden = (head[ids] * torch.linspace(0.8, 8.0, 40)[:, None]).requires_grad_()
    logp, _ = token_logprobs_and_entropy(hidden, head, ids)
    (found,) = torch.autograd.grad(logp.sum(), hidden)
    logits = hidden.detach().double() @ head.double().T
    z_token = logits.gather(1, ids[:, None])
    logits.scatter_(1, ids[:, None], -math.inf)
    difference = logits.logsumexp(dim=1, keepdim=True) - z_token
    one_minus_p = torch.sigmoid(difference)
    assert one_minus_p.max() > 0.1
    assert one_minus_p.min() < 1e-12
    exact = one_minus_p * (head.double()[ids] - torch.softmax(logits, dim=1) @ head.double())
    assert ((found.double() - exact).norm(dim=1) / exact.norm(dim=1)).max() < 1e-4
    expected = -torch.nn.functional.softplus(difference, threshold=1e9)[:, 0]
    torch.testing.assert_close(logp.detach().double(), expected, rtol=1e-4, atol=0)


def test_without_gradient_nothing_is_written_back(by_kernel: pytest.MonkeyPatch) -> None:
    hidden, head, bias, ids, _ = case()
    with torch.no_grad():
        logp, entropy = token_logprobs_and_entropy(hidden, head, ids, bias_V=bias)
    assert not logp.requires_grad
    full = torch.log_softmax(hidden.double() @ head.double().T + bias, dim=-1)
    torch.testing.assert_close(logp.double(), full.gather(1, ids[:, None])[:, 0], rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(entropy.double(), -(full.exp() * full).sum(-1), rtol=2e-6, atol=2e-6)


def test_bfloat16_factors(by_kernel: pytest.MonkeyPatch) -> None:
    """Residuals in bfloat16, sums in float32. On a CPU the products' results are rounded too: hence 1 %."""
    by_kernel.setattr("gtpo_cli.kernels.logprobs._multiplies_bfloat16", lambda *_: True)
    hidden, head, bias, ids, send = case()
    ours, torchs = both((hidden.bfloat16(), head.bfloat16(), bias.bfloat16(), ids, send), by_kernel)
    torch.testing.assert_close(ours[0], torchs[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours[1], torchs[1], rtol=1e-5, atol=1e-5)
    for kernel, path in zip(ours[2], torchs[2], strict=True):
        assert kernel.dtype == torch.bfloat16
        assert (kernel - path).float().norm() <= 1e-2 * path.float().norm()
