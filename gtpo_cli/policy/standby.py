"""A fix for vLLM's sleeping allocator after Unsloth has replaced its methods: it records which memory is asleep.

Without this record a wake-up that fails half way cannot be repeated, since it would map memory twice. At the end of the
process sleeping memory would be freed twice, and vLLM would print `CUDA Error: invalid argument`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_WEIGHTS = "weights"  # stay awake in Unsloth, since the policy trains with them


@contextmanager
def recording_what_sleeps() -> Iterator[None]:
    """Patch the allocator while an engine that can sleep starts. There is one allocator in a process.

    It binds its function for freeing memory at the start of the engine; until then Unsloth replaces the other two.
    """
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
    """Wake all memory, or none of it if memory runs out (RuntimeError)."""
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
    """Return memory for vLLM's C code to unmap, mapping it first if it is asleep."""
    from vllm.device_allocator import cumem

    data = allocator.pointer_to_data.get(pointer)
    if data is not None and data.is_asleep:
        with suppress(RuntimeError):  # not even this one fits; vLLM reports that and continues
            cumem.create_and_map(data.handle)
            data.is_asleep = False
    return allocator._free_awake(pointer)
