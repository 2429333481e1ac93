"""What vLLM's sleeping allocator lacks once Unsloth has replaced its methods: it does not know what is asleep.

So a waking that fails half way cannot be repeated (what is mapped already would be mapped again), and at the end of the
process what sleeps is given back a second time: vLLM then prints `CUDA Error: invalid argument`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_WEIGHTS = "weights"  # the policy trains with them: Unsloth lets them stay


@contextmanager
def recording_what_sleeps() -> Iterator[None]:
    """Around the start of an engine that can sleep, which has one allocator in a process. The allocator binds what is
    called when memory is freed as the engine starts; Unsloth replaces the other two methods by then."""
    from vllm.device_allocator import cumem

    allocator: Any = cumem.CuMemAllocator
    if not hasattr(allocator, "_free_awake"):
        allocator._free_awake, allocator._python_free_callback = allocator._python_free_callback, _free
    yield
    if allocator.sleep is not _sleep:
        allocator._sleep_all, allocator.sleep, allocator.wake_up = allocator.sleep, _sleep, _wake_up


def _sleep(allocator: Any, offload_tags: Any = None) -> None:
    allocator._sleep_all(offload_tags)
    for data in allocator.pointer_to_data.values():
        data.is_asleep = data.tag != _WEIGHTS


def _wake_up(allocator: Any, tags: list[str] | None = None) -> None:
    """All of it, or, where memory runs out (RuntimeError), none."""
    from vllm.device_allocator import cumem

    gc.collect()
    torch.cuda.empty_cache()
    woken: list[Any] = []
    try:
        for pointer, data in allocator.pointer_to_data.items():
            if not data.is_asleep or (tags is not None and data.tag not in tags):
                continue
            cumem.create_and_map(data.handle)
            data.is_asleep = False
            woken.append(data)
            if data.cpu_backup_tensor is not None:
                cumem.libcudart.cudaMemcpy(pointer, data.cpu_backup_tensor.data_ptr(), data.cpu_backup_tensor.nbytes)
    except RuntimeError:
        for data in woken:
            cumem.unmap_and_release(data.handle)
            data.is_asleep = True
        raise
    for data in woken:
        data.cpu_backup_tensor = None


def _free(allocator: Any, pointer: int) -> Any:
    """vLLM's C code unmaps what this returns: it must be mapped."""
    from vllm.device_allocator import cumem

    data = allocator.pointer_to_data.get(pointer)
    if data is not None and data.is_asleep:
        with suppress(RuntimeError):  # no room even for this one: vLLM says so, and goes on
            cumem.create_and_map(data.handle)
            data.is_asleep = False
    return allocator._free_awake(pointer)
