"""Compile the Triton kernel for NVIDIA GPUs on a machine without one: registers, shared memory and spills on each.

    python scripts/measure/compile_kernel.py             # every case on every card (a minute)
    python scripts/measure/compile_kernel.py --json      # a list with one object for each kernel

The launches are those of gtpo_cli/kernels/row_kernel.py itself, up to the launch: `forward_rows` runs on a CPU's
tensors, with the types that factors have on CUDA, while Triton is told that the GPU is such a card. So block, warps,
argument types and what Triton specialises on (sizes and addresses that 16 divides) are those of a run. Exit code 1
where a kernel spills registers or asks for more shared memory than a block of the card may have.
"""

# Triton ships without types.
# mypy: ignore-errors

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from gtpo_cli.kernels import logprobs, row_kernel, row_kernel_triton

# Compute capability -> (cards, KiB of shared memory that a block may have there; CUDA C++ Programming Guide, table of
# compute capabilities)
CARDS = {
    80: ("A100", 163),
    86: ("RTX 3090, A10", 99),
    89: ("RTX 4090, L4, L40", 99),
    90: ("H100, H200", 227),
    100: ("B200", 227),
    120: ("RTX 5090, RTX PRO 6000", 99),
}
TYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = 17  # of a chunk; the second chunk's addresses are then no multiples of 16 bytes


class Card:
    """What Triton asks its driver before it compiles."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps what it compiled by device

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiles:
    """Stands where row_kernel.py finds the kernel, and compiles instead of launching."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.compiled = kernel, []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            with contextlib.redirect_stdout(io.StringIO()) as log:
                kernel = self.kernel.run(*arguments, grid=grid, warmup=True, **options)
            self.compiled.append((kernel, log.getvalue()))

        return launch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a list with one object for each kernel")
    arguments = parser.parse_args()
    figures = [figure for capability in CARDS for figure in figures_of(capability)]
    print(json.dumps(figures, indent=1) if arguments.json else table(figures))
    bad = [one for one in figures if one["spilled"] or one["shared"] > 1024 * CARDS[one["capability"]][1]]
    for one in bad:
        print(f"spills or does not fit: {one}", file=sys.stderr)
    return 1 if bad else 0


def cases() -> Iterator[tuple[torch.dtype, bool, bool, int, int]]:
    """(type of the factors, with bias, with residual, vocabulary, tokens)."""
    yield from itertools.product(TYPES, (False, True), (False, True), (128_256,), (ROWS,))
    yield from itertools.product(TYPES, (True,), (True,), (50_257,), (ROWS + 1,))  # 16 divides neither it nor ROWS


def figures_of(capability: int) -> Iterator[dict[str, Any]]:
    """What ptxas says of each kernel that these cases launch on such a card."""
    driver.set_active(Card(capability))
    for dtype, bias, residual, V, N in cases():
        for kernel, log in compiled(dtype, bias=bias, residual=residual, V=V, N=N):
            spilled = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
            registers = re.search(r"Used (\d+) registers", log)
            if spilled is None or registers is None:
                sys.exit(f"ptxas of Triton {triton.__version__} did not say what the kernel takes; it said:\n{log}")
            names = kernel.src.fn.arg_names
            yield {
                "capability": capability,
                "factors": str(dtype).removeprefix("torch."),
                "bias": bias,
                "residual": residual,
                "vocabulary": V,
                "signature": {name: str(kind) for name, kind in kernel.src.signature.items()},
                "multiples_of_16": [names[place] for (place,), kind in kernel.src.attrs.items() if kind],
                "block": kernel.src.constants[(names.index("BLOCK"),)],
                "warps": kernel.metadata.num_warps,
                "registers": int(registers.group(1)),
                "shared": kernel.metadata.shared,
                "spilled": max(map(int, spilled.groups())),
            }


def compiled(dtype: torch.dtype, *, bias: bool, residual: bool, V: int, N: int, H: int = 16) -> list[tuple[Any, str]]:
    """(kernel, ptxas' words) of each launch of forward_rows with such tensors on the active card."""
    stand_in = Compiles(row_kernel_triton.row_kernel)
    out = tuple(torch.empty(N) for _ in range(3))
    places = ((row_kernel_triton, "row_kernel", stand_in), (row_kernel, "CHUNK_BYTES", 4 * V * ROWS),
              (row_kernel, "factor_dtype", lambda kind, _: logprobs.factor_dtype(kind, torch.device("cuda"))),
              (triton.knobs.nvidia, "dump_ptxas_log", True))  # fmt: skip
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as cache:
        for module, name, value in (*places, (triton.knobs.cache, "dir", cache)):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        row_kernel.forward_rows(
            torch.zeros(N, H, dtype=dtype), torch.zeros(V, H, dtype=dtype), torch.zeros(V) if bias else None,
            torch.zeros(N, dtype=torch.int64), 1.0, (*out, torch.empty(N, H) if residual else None),
        )  # fmt: skip
    return stand_in.compiled


def table(figures: list[dict[str, Any]]) -> str:
    """A line for each card and vocabulary: the most of all its kernels."""
    lines = [
        f"Triton {triton.__version__}, {figures[0]['warps']} warps, {figures[0]['block']} logits at a time",
        "",
        "| capability | cards | vocabulary | kernels | registers a thread | shared memory | at most | spilled |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (capability, V), group in itertools.groupby(figures, key=lambda one: (one["capability"], one["vocabulary"])):
        ones = list(group)
        cards, limit = CARDS[capability]
        most = {name: max(one[name] for one in ones) for name in ("registers", "shared", "spilled")}
        lines.append(
            f"| {capability // 10}.{capability % 10} | {cards} | {V} | {len(ones)} | {most['registers']} "
            f"| {most['shared']} B | {limit} KiB | {most['spilled']} B |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
