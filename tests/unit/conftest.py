"""Shared by the unit tests: the built-in model, small real models, and where the real data is."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Triton decides when it is imported, by whatever library comes first, whether its kernels run in its interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The machine decides how long an example takes, not the code.
settings.register_profile("gtpo", deadline=None)
settings.load_profile("gtpo")

SHARED = Path(__file__).resolve().parents[2].parent / "shared"


def pytest_collection_finish() -> None:
    """What the imports left stays: the garbage collector need not walk through it again and again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Same sums on every machine, and no fight over cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and tokenizers beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("no folder shared/ beside the checkout: real data and tokenizers are not here")
    return SHARED
