"""The Triton kernel compiled for GPUs that are not here, by Triton and its ptxas, as row_kernel.py launches it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gtpo_cli.kernels import row_kernel

pytest.importorskip("triton", reason="Triton comes with the extra dev on Linux")

ROOT = Path(__file__).resolve().parents[3]
# Compute capability: KiB of shared memory that a block may have (CUDA C++ Programming Guide)
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
POINTERS = {"logits_ptr", "residual_ptr", "bias_ptr", "token_ids_ptr", "logprobs_ptr", "entropy_ptr", "lse_ptr"}


@pytest.mark.slow
def test_it_compiles_for_every_card_without_spills() -> None:
    # A process of its own: the interpreter, which the other tests use, is chosen when Triton is imported.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/measure/compile_kernel.py", "--json"],
        env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout)
    for capability, limit in SHARED_KIB.items():
        assert sum(one["capability"] == capability for one in figures) == 18
        assert all(one["shared"] <= 1024 * limit for one in figures if one["capability"] == capability)
    assert {one["capability"] for one in figures} == SHARED_KIB.keys()
    for one in figures:
        assert one["spilled"] == 0, one
        assert 0 < one["registers"] * 32 * one["warps"] <= 65536  # of a multiprocessor
        assert one["block"] == row_kernel._BLOCK
        # The types and specialisations that a run has.
        kind = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32"}[one["factors"]]
        assert one["signature"] == {
            "logits_ptr": "*fp32", "logits_stride": "i32", "residual_ptr": kind, "residual_stride": "i32",
            "bias_ptr": "*fp32", "token_ids_ptr": "*i64", "logprobs_ptr": "*fp32", "entropy_ptr": "*fp32",
            "lse_ptr": "*fp32", "V": "i32", "inverse_temperature": "fp32",
            "HAS_BIAS": "constexpr", "WITH_RESIDUAL": "constexpr", "BLOCK": "constexpr",
        }  # fmt: skip
        sizes = {"logits_stride", "residual_stride", "V"} if one["vocabulary"] % 16 == 0 else set()
        assert sizes <= set(one["multiples_of_16"]) <= sizes | POINTERS
    cases = {(one["factors"], one["bias"], one["residual"], one["vocabulary"]) for one in figures}
    assert len(cases) == 3 * 2 * 2 + 3
    places = {frozenset(one["multiples_of_16"]) for one in figures if one["vocabulary"] == 50_257}
    assert POINTERS in places  # the first chunk of a batch
    assert POINTERS - {"token_ids_ptr", "logprobs_ptr", "entropy_ptr", "lse_ptr"} in places  # a later one
