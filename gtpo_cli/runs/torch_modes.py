"""Torch's modes around a user's code: whatever it switches, training goes on as before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Modes = Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]]  # how each mode is read and written

_lock = threading.Lock()
_open_blocks = 0
_before: dict[str, Any] = {}  # modes of the process before the first open block
_guards: list[Any] = []  # torch leaves an inference mode when its guard is freed, so these stay


@contextmanager
def torch_modes_kept() -> Iterator[None]:
    """Restore the modes of torch that the block changed, and those of a fresh torch if the block imported it.

    Blocks may overlap in threads. Then the modes of the process stay those from before the first of them.
    """
    global _open_blocks, _before
    known = "torch" in sys.modules
    of_thread = _read(_modes_of_thread()) if known else {}
    with _lock:
        if _open_blocks == 0:
            _before = _read(_modes_of_process()) if known else {}
        _open_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _open_blocks -= 1
            if "torch" in sys.modules:
                _restore(_modes_of_thread(), of_thread)
                _restore(_modes_of_process(), _before)


def _read(modes: Modes) -> dict[str, Any]:
    return {name: read() for name, (read, _) in modes.items()}


def _restore(modes: Modes, values: dict[str, Any]) -> None:
    for name, (read, write) in modes.items():
        value = values.get(name, _FRESH.get(name))
        if value is not None and read() != value:
            write(value)


# Names, so that torch need not be there. A fresh torch has as many threads as the machine's cores, so they have none.
_FRESH = {
    "inference": False, "gradients": True, "autocast": False, "autocast on a GPU": False, "device": "cpu",
    "type": "float32", "anomalies": False, "precision": "highest", "deterministic": False,
}  # fmt: skip


def _modes_of_thread() -> Modes:
    import torch

    def autocast(kind: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        return lambda: torch.is_autocast_enabled(kind), lambda on: torch.set_autocast_enabled(kind, on)

    return {
        "inference": (torch.is_inference_mode_enabled, lambda on: _guards.append(torch._C._InferenceMode(on))),
        "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),  # after inference, which switches them too
        "autocast": autocast("cpu"),
        "autocast on a GPU": autocast("cuda"),
        "device": (
            lambda: str(torch.get_default_device()),
            # A default of the CPU would be the same, but slow every call of torch.
            lambda device: torch.set_default_device(None if device == "cpu" else device),
        ),
    }


def _modes_of_process() -> Modes:
    import torch

    return {
        "type": (
            lambda: str(torch.get_default_dtype()).removeprefix("torch."),
            lambda name: torch.set_default_dtype(getattr(torch, name)),
        ),
        "anomalies": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        "threads": (torch.get_num_threads, torch.set_num_threads),
        "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    }
