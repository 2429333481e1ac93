"""A GPU that is not there: enough of torch.cuda for Unsloth to take its CUDA branch, on a machine without one.

Unsloth's forward, its Triton kernels (in Triton's interpreter), its LoRA and checkpointing functions, its `load_vllm`
and vLLM's engine (the CPU build) are the libraries' own code. What is put in their place stands here, each with its
reason; docs/engines.md lists what this cannot show (memory, speed, bfloat16, CUDA graphs).

    python tests/rehearsal/environment.py tests/rehearsal/card.py PROGRAM ...    runs a Python program with it
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import runpy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

GIB = 1 << 30
calls: list[str] = []  # "sleep" and "wake" of the engine, in order; tests may add their own


class _Properties:
    """Of an H100, as torch.cuda.get_device_properties has them."""

    name, major, minor, total_memory, multi_processor_count = "NVIDIA H100 80GB HBM3", 9, 0, 80 * GIB, 132
    L2_cache_size, warp_size, max_threads_per_multi_processor = 50 << 20, 32, 2048
    shared_memory_per_block, shared_memory_per_block_optin = 49152, 232448
    gcnArchName, uuid, is_integrated = "", "0", False


class _Stream:
    """Work on a CPU is done when the call returns: there is nothing to wait for."""

    cuda_stream = 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class _Device(contextlib.nullcontext[None]):
    """`with torch.cuda.device(0):`"""

    def __init__(self, index: Any = 0) -> None:
        super().__init__()
        self.idx = 0


def _is_bf16_supported(including_emulation: bool = True) -> bool:
    """With torch's own signature: Unsloth looks at it, and puts a question of its own in its place."""
    return True


def start() -> None:
    """From here on, Unsloth as gtpo imports it and vLLM find a card."""
    insert()
    from gtpo_cli.policy import unsloth_policy
    from gtpo_cli.recipe.schema import RolloutRecipe

    unsloth_policy._fast_language_model(RolloutRecipe())  # gtpo's own import, with its settings
    _fit_unsloth()
    fit_vllm()
    gc.freeze()  # Unsloth collects garbage with every model: of what was imported there is none, and it takes a second


def insert() -> None:
    """Let torch.cuda speak of one H100, and every tensor that goes to "cuda" stay on the CPU."""
    import bitsandbytes  # noqa: F401  # before: it must choose its CPU backend
    import vllm  # noqa: F401  # before: it must choose its CPU platform

    cuda: Any = torch.cuda
    answers = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0,
        "get_device_properties": _Properties(), "get_device_name": _Properties.name, "get_device_capability": (9, 0),
        "mem_get_info": (79 * GIB, 80 * GIB), "current_stream": _Stream(), "default_stream": _Stream(),
        "get_rng_state_all": [], "get_arch_list": ["sm_90"],
    }  # fmt: skip
    answers |= dict.fromkeys(
        ("synchronize", "empty_cache", "set_device", "reset_peak_memory_stats", "manual_seed_all", "_lazy_init",
         "set_rng_state_all", "ipc_collect"), None,
    )  # fmt: skip
    answers |= dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0)
    for name, answer in answers.items():
        setattr(cuda, name, lambda *_, _answer=answer, **__: _answer)
    cuda.is_bf16_supported = _is_bf16_supported
    cuda.Stream, cuda.Event, cuda.device = _Stream, _Stream, _Device
    cuda.stream = lambda stream: _Stream()
    torch.version.cuda = "13.0"
    raw: Any = torch._C
    raw._cuda_getCurrentRawStream = lambda *_: 0  # bitsandbytes and Unsloth ask for it at import
    torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    _OnCpu().__enter__()
    import transformers.modeling_utils as modeling

    modeling.caching_allocator_warmup = lambda *_, **__: None  # asks the CUDA allocator for a block
    _hasten_interpreter()


class _OnCpu(TorchFunctionMode):
    """Wherever a call names a CUDA device, by name, object or number, the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.device:
            first = args[0] if args else kwargs.get("type", kwargs.get("device"))
            is_cuda = isinstance(first, int) or (isinstance(first, str) and first.startswith("cuda"))
            return func("cpu") if is_cuda else func(*args[:1])
        kwargs.pop("pin_memory", None)  # there is no other memory to copy to from there
        if "device" in kwargs:
            kwargs["device"] = _here(kwargs["device"], numbers=True)
        args = tuple(_here(arg) for arg in args)
        name = getattr(func, "__name__", "")
        if name in ("cuda", "pin_memory"):
            return args[0]
        if name == "to" and len(args) > 1:
            args = (args[0], _here(args[1], numbers=True), *args[2:])
        return func(*args, **kwargs)


def _here(value: Any, *, numbers: bool = False) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, str) and value.startswith("cuda"):
        return "cpu"
    return "cpu" if numbers and isinstance(value, int) and not isinstance(value, bool) else value


class _ByDevice(list[Any]):
    """Unsloth keeps a list by `device.index`, which is None for a CPU."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(0 if index is None else index)

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(0 if index is None else index, value)


def _fit_unsloth() -> None:
    """What Unsloth's modules ask of the card when they are used."""
    import bitsandbytes
    import unsloth.models.llama as llama
    import unsloth.models.loader as loader

    def dequantize(weight: Any, quant_state: Any = None, out: Any = None, *_: Any, **__: Any) -> Any:
        """For Unsloth's call by ctypes into bitsandbytes' CUDA library: the same by its CPU backend."""
        return weight if quant_state is None else bitsandbytes.functional.dequantize_4bit(weight, quant_state)

    loader.ALLOW_BITSANDBYTES = True  # it looks whether bitsandbytes' CUDA library loads
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("unsloth"):
            if hasattr(module, "torch_gpu_device"):
                module.torch_gpu_device = contextlib.nullcontext
            if hasattr(module, "fast_dequantize"):
                module.fast_dequantize = dequantize
    for rotary in vars(llama).values():
        if isinstance(rotary, type) and "Rotary" in rotary.__name__ and rotary.__module__ == llama.__name__:
            for name in ("multi_gpu_cos_cached", "multi_gpu_sin_cached"):
                setattr(rotary, name, _by_device(name))


def _by_device(name: str) -> property:
    key = f"_by_device_{name}"

    def keep(self: Any, value: Any) -> None:
        self.__dict__[key] = _ByDevice(value) if isinstance(value, list) else value

    return property(lambda self: self.__dict__.get(key), keep)


def fit_vllm() -> None:
    """What the CPU build does otherwise than on a GPU."""
    from vllm import _custom_ops
    from vllm.model_executor.layers import utils
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform
    from vllm.v1.worker.cpu_worker import CPUWorker

    # It repacks the linear layers' weights for its own matrix product and drops the plain ones, which Unsloth shares.
    utils.check_cpu_sgl_kernel = lambda *_: False
    _custom_ops._supports_onednn = False
    # It looks at a model's class in a process of its own, which imports vLLM again, lest CUDA starts in this one.
    registry._run_in_subprocess = lambda look: look()
    # The least that can be asked for is a GiB of cache, which each start fills with zeros. A tenth is enough here.
    own = CPUWorker.determine_available_memory
    CPUWorker.determine_available_memory = lambda self: own(self) // 10
    # It has no sleep mode. Say that it has, and record where the worker would give memory back: all above the worker is
    # vLLM's own, whose scheduler pauses.
    type(current_platform).is_sleep_mode_available = lambda self: True
    CPUWorker.sleep = lambda self, level=1: calls.append("sleep")
    CPUWorker.wake_up = lambda self, tags=None: calls.append("wake")


def _hasten_interpreter() -> None:
    """Spare Triton's interpreter, whose time is most of the rehearsal's, what no kernel's result depends on."""
    from triton.runtime import interpreter

    # It computes integers a second time in 64 bits, and drops what it finds unless it debugs.
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    own, known = interpreter._get_np_dtype, dict[str, Any]()  # which makes a table of all types whenever it is called

    def np_dtype(kind: Any) -> Any:
        if str(kind) not in known:
            known[str(kind)] = own(kind)
        return known[str(kind)]

    interpreter._get_np_dtype = np_dtype


def no_room_at_wake_up(times: int) -> None:
    """The card's memory is full when the engine wakes up, so many times: what vLLM's allocator raises then."""
    from vllm.v1.worker.cpu_worker import CPUWorker

    own, full = CPUWorker.wake_up, [None] * times

    def wake_up(worker: Any, tags: Any = None) -> None:
        if full:
            full.pop()
            raise RuntimeError("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62")
        own(worker, tags)

    CPUWorker.wake_up = wake_up


if __name__ == "__main__":
    start()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
