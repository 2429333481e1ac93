"""Figures of the objective: log-probabilities without logits, conflict mask. Run: `python benchmarks/objective.py`."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from measure import Figure, interleaved, median_ratio, own_peak_bytes, peak_bytes_of, write
from torch import Tensor

from gtpo_cli.kernels import token_logprobs_and_entropy
from gtpo_cli.objective import conflict_mask
from gtpo_cli.objective.conflict import Alignment

TITLE = "Objective"
TIMED = [(32000, 512, 2048), (128256, 1024, 768)]  # V, H, N
TRAINED = (49152, 576, 512)  # SmolLM2's output layer, which trains
HELD = (128256, 512, 4096)
TEMPERATURE = 0.9  # any but 1: a sampling temperature is a key of the recipe, so either path must honour it


def run(*, rounds: int = 5) -> list[Figure]:
    """All figures. About 10 s a round, and half a minute for memory and accuracy, on one core."""
    torch.set_num_threads(1)
    figures = [peak_memory(), *accuracy()]
    dtypes = (torch.float32, torch.bfloat16)
    figures += [path_time(*shape, dtype, rounds=rounds) for shape in TIMED for dtype in dtypes]
    figures += [path_time(*TRAINED, dtype, rounds=rounds, trained=True) for dtype in dtypes]
    return figures + mask_time(rounds)


# -- log-probabilities and entropies ----------------------------------------------------------------------------------


def inputs(V: int, H: int, N: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states with gradient, frozen output layer, token ids, gradient to send back; logits deviate by 3."""
    generator = torch.Generator().manual_seed(3407)
    lm_head_VH = torch.randn(V, H, generator=generator).mul_(3 / math.sqrt(H))
    hidden_NH = torch.randn(N, H, generator=generator).requires_grad_()
    ids_N = torch.randint(0, V, (N,), generator=generator)
    return hidden_NH, lm_head_VH, ids_N, torch.randn(N, generator=generator)


def gtpo_path(hidden_NH: Tensor, lm_head_VH: Tensor, ids_N: Tensor, send_N: Tensor) -> Tensor:
    """Forward and backward; returns the gradient of the hidden states. That of an output layer that trains is made."""
    logprobs_N, _ = token_logprobs_and_entropy(hidden_NH, lm_head_VH, ids_N, temperature=TEMPERATURE)
    return torch.autograd.grad(logprobs_N, _trained(hidden_NH, lm_head_VH), send_N)[0]


def _trained(*tensors: Tensor) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.requires_grad]


def naive_path(
    hidden_NH: Tensor, lm_head_VH: Tensor, ids_N: Tensor, send_N: Tensor, *, temperature: float | None = TEMPERATURE
) -> Tensor:
    """The same through full logits, log_softmax and autograd; with None it knows no temperature."""
    logits_NV = (hidden_NH @ lm_head_VH.T).float()
    logprobs_NV = torch.log_softmax(logits_NV if temperature is None else logits_NV / temperature, dim=-1)
    with torch.no_grad():
        _ = -(logprobs_NV.exp() * logprobs_NV).sum(dim=-1)
    logprobs_N = logprobs_NV.gather(1, ids_N[:, None])[:, 0]
    return torch.autograd.grad(logprobs_N, _trained(hidden_NH, lm_head_VH), send_N)[0]


def two_products(hidden_NH: Tensor, lm_head_VH: Tensor, ids_N: Tensor, send_N: Tensor) -> Tensor:
    """The least that any path must do: hidden states to logits, and a matrix of their size back to hidden states (and
    to an output layer that trains)."""
    with torch.no_grad():
        logits_NV = hidden_NH @ lm_head_VH.T
        if lm_head_VH.requires_grad:
            _ = logits_NV.T @ hidden_NH
        return logits_NV @ lm_head_VH


def path_time(V: int, H: int, N: int, dtype: torch.dtype, *, rounds: int, trained: bool = False) -> Figure:
    hidden_NH, lm_head_VH, ids_N, send_N = inputs(V, H, N)
    head_VH = lm_head_VH.to(dtype).requires_grad_(trained)
    arguments = (hidden_NH.detach().to(dtype).requires_grad_(), head_VH, ids_N, send_N)
    lean_path = partial(naive_path, temperature=None)
    paths: dict[str, Callable[..., Tensor]] = {
        "gtpo": gtpo_path,
        "naive": naive_path,
        "lean": lean_path,
        "products": two_products,
    }
    seconds = interleaved({name: partial(path, *arguments) for name, path in paths.items()}, rounds=rounds)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    return Figure(
        name=f"log-probabilities and entropy, forward and backward, V {V}, H {H}, N {N}, "
        f"{str(dtype).removeprefix('torch.')}, {'trained' if trained else 'frozen'} output layer: CPU time over naive",
        value=median_ratio(seconds, "gtpo", "naive"),
        unit="",
        note=f"{medians['gtpo']:.2f} s over {medians['naive']:.2f} s, {rounds} rounds; the matrix products alone: "
        f"{median_ratio(seconds, 'products', 'naive'):.3f}; ours over a naive path that knows no temperature: "
        f"{median_ratio(seconds, 'gtpo', 'lean'):.3f}",
    )


def memory_job(job: str) -> None:
    """Child process: the inputs, and with "path" what is measured on top of them."""
    torch.set_num_threads(1)
    arguments = inputs(*HELD)
    if job == "path":
        gtpo_path(*arguments)
    print(own_peak_bytes())


def peak_memory() -> Figure:
    V, H, N = HELD
    script = Path(__file__)
    above_inputs = peak_bytes_of(script, "path") - peak_bytes_of(script, "inputs")
    return Figure(
        name=f"peak memory of the same, V {V}, H {H}, N {N}: share of the float32 logits",
        value=above_inputs / (4 * N * V),
        unit="",
        note=f"{above_inputs / 2**20:.0f} MiB over {4 * N * V / 2**20:.0f} MiB",
    )


def accuracy() -> list[Figure]:
    """Errors of the hidden states' gradient against float64."""
    V, H, N = 32000, 512, 256
    hidden_NH, lm_head_VH, ids_N, send_N = inputs(V, H, N)
    exact, _ = exact_gradient(hidden_NH, lm_head_VH, ids_N, send_N)
    found = gtpo_path(hidden_NH, lm_head_VH, ids_N, send_N).double()
    overall = float((found - exact).norm() / exact.norm())

    # Hidden states along the sampled token's row, longer and longer: from an open choice to near certainty.
    confident_NH = lm_head_VH[ids_N] * torch.linspace(0.8, 4.5, N)[:, None]
    confident_NH.requires_grad_()
    exact, one_minus_p = exact_gradient(confident_NH, lm_head_VH, ids_N, send_N)
    worst = {}
    for name, path in (("gtpo", gtpo_path), ("naive", naive_path)):
        found = path(confident_NH, lm_head_VH, ids_N, send_N).double()
        worst[name] = float(((found - exact).norm(dim=1) / exact.norm(dim=1)).max())
    reach = f"1 - p from {float(one_minus_p.max()):.1g} down to {float(one_minus_p.min()):.1g}"
    return [
        Figure(f"gradient error against float64, V {V}, H {H}, N {N}: norm of all rows", overall, ""),
        Figure(
            "gradient error against float64: worst row among confident tokens",
            worst["gtpo"],
            "",
            f"{reach}; naive path {worst['naive']:.1g}",
        ),
    ]


def exact_gradient(hidden_NH: Tensor, lm_head_VH: Tensor, ids_N: Tensor, send_N: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient in float64, and 1 - p. The sampled token stays out of the sum, or 1 - p would cancel."""
    lm_head = lm_head_VH.double()
    logits_NV = hidden_NH.detach().double() @ lm_head.T / TEMPERATURE
    z_token_N1 = logits_NV.gather(1, ids_N[:, None])
    logits_NV.scatter_(1, ids_N[:, None], -math.inf)
    others_N1 = logits_NV.logsumexp(dim=1, keepdim=True)
    one_minus_p_N1 = torch.sigmoid(others_N1 - z_token_N1)
    others_p_NV = torch.softmax(logits_NV, dim=1) * one_minus_p_N1
    gradient_NH = one_minus_p_N1 * lm_head[ids_N] - others_p_NV @ lm_head
    return gradient_NH * send_N.double()[:, None] / TEMPERATURE, one_minus_p_N1


# -- conflict mask ----------------------------------------------------------------------------------------------------


def mask_time(rounds: int) -> list[Figure]:
    """One group of long completions that share their first 400 and last 50 tokens in part."""
    return [figure for G, T in ((12, 1500), (64, 4096)) for figure in _mask_time(G, T, rounds)]


def _mask_time(G: int, T: int, rounds: int) -> list[Figure]:
    V = 128256
    generator = torch.Generator().manual_seed(3407)
    ids = torch.randint(0, V, (1, G, T), generator=generator)
    lengths = torch.randint(T // 2, T + 1, (G,), generator=generator)
    lengths[0] = T
    for i, length in enumerate(lengths.tolist()):
        same = int(torch.randint(0, 400, (1,), generator=generator))
        ids[0, i, :same] = ids[0, 0, :same]
        ids[0, i, length - 50 : length] = ids[0, 0, T - 50 :]
    mask = torch.arange(T) < lengths[:, None]
    advantages = torch.randn(1, G, generator=generator)
    alignments: tuple[Alignment, ...] = ("position", "prefix")
    seconds = interleaved(
        {name: partial(conflict_mask, ids, mask[None], advantages, alignment=name) for name in alignments},
        rounds=10 * rounds,
        calls=20,
    )
    return [
        Figure(
            name=f"conflict mask, alignment {name}, G {G}, T {T}, V {V}: CPU time",
            value=1000 * statistics.median(seconds[name]),
            unit="ms",
            note=f"{10 * rounds} rounds of 20 calls",
        )
        for name in alignments
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for JSON and Markdown")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--job", choices=["inputs", "path"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        memory_job(options.job)
    else:
        print(write(options.out, "objective", TITLE, run(rounds=options.rounds)))


if __name__ == "__main__":
    main()
