"""Every allocation of a forward and backward pass, counted: on fake tensors, so that a model of any size can be traced.

The oracle of gtpo_cli.machine.memory. The tensors have shapes and no contents (torch's FakeTensorMode).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gtpo_cli.machine.shapes import ModelShape

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Allocations(TorchDispatchMode):
    """Bytes of the storages that live at the same time, apart from those of `known` tensors."""

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self._known and key not in self._live:
                    self._live[key] = (StorageWeakRef(storage), storage.nbytes())
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return out


def trace(
    shape: ModelShape, *, rank: int, dtype: torch.dtype, tokens: int, adapter: torch.dtype = torch.float32,
    trains: bool = True, checkpointing: bool = False,
) -> int:  # fmt: skip
    """Return the most bytes beside weights and gradients in passes over one row without the output layer.

    A forward and a backward pass, or a forward pass without gradient. `rank` 0: no adapter. `adapter`: its type.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim, attn_implementation="sdpa",
    )  # fmt: skip
    with FakeTensorMode(allow_non_fake_inputs=True):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model: Any = LlamaForCausalLM(config)
        finally:
            torch.set_default_dtype(before)
        if rank:
            model = _with_adapter(model, rank, adapter)
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train(trains)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        known = [*model.parameters(), *model.buffers(), *(parameter.grad for parameter in trained)]
        backbone = (model.get_base_model() if rank else model).base_model
        with Allocations(known) as allocations, torch.set_grad_enabled(trains):
            ids = torch.ones(1, tokens, dtype=torch.long)
            hidden = backbone(input_ids=ids, use_cache=False).last_hidden_state
            if trains:
                torch.autograd.backward(hidden, torch.ones_like(hidden))
    return allocations.peak


def _with_adapter(model: Any, rank: int, dtype: torch.dtype) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=ALL, task_type="CAUSAL_LM")
    move = torch.nn.Module.to
    torch.nn.Module.to = lambda self, *args, **kwargs: self  # type: ignore[assignment,method-assign]  # fakes refuse
    try:
        model = get_peft_model(model, config, autocast_adapter_dtype=False)
    finally:
        torch.nn.Module.to = move  # type: ignore[method-assign]
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return model
