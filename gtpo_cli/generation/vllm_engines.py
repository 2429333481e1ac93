"""Two ways to have a vLLM engine that serves the policy's base model with the policy's adapter on top.

PlainEngine: a `vllm.LLM` of its own, with its own copy of the base weights, beside any policy.
SharedEngine: the engine that Unsloth starts with the policy (`fast_inference`); base weights exist once.

In both, every update is a new adapter name and id: under a name that is used again, vLLM may serve the key-value cache
of the old weights.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from gtpo_cli.models.policy import Policy

Prompt = dict[str, list[int]]  # {"prompt_token_ids": ids}


class AdapterEngine(Protocol):
    """What `VllmSampler` needs."""

    def update(self, policy: Policy) -> None:
        """Sample with the policy's current adapter from now on."""

    def generate(self, prompts: Sequence[Prompt], params: Sequence[Any]) -> list[Any]:
        """vLLM's RequestOutputs, one for each prompt with its SamplingParams."""


class PlainEngine:
    """A `vllm.LLM` that was started with adapters enabled; the adapter travels through a folder."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._folder = tempfile.TemporaryDirectory(prefix="gtpo-adapter-")
        self._numbers = count(1)
        self._adapter: Any = None

    def update(self, policy: Policy) -> None:
        from vllm.lora.request import LoRARequest

        number = next(self._numbers)
        path = Path(self._folder.name) / str(number)
        policy.save(path)
        shutil.rmtree(path.with_name(str(number - 1)), ignore_errors=True)  # loaded long ago; an adapter can be large
        self._adapter = LoRARequest(f"policy-{number}", number, str(path))

    def generate(self, prompts: Sequence[Prompt], params: Sequence[Any]) -> list[Any]:
        outputs: list[Any] = self._engine.generate(
            list(prompts), list(params), lora_request=self._adapter, use_tqdm=False
        )
        return outputs


class SharedEngine:
    """The engine inside a model that Unsloth loaded with fast inference.

    It sleeps from here on, and wakes only to sample, where Unsloth's standby is on: its key-value cache makes room for
    training. Unsloth and vLLM allow one such engine in a process.
    """

    def __init__(self, model: Any) -> None:
        """`model`: what Unsloth returned, with `fast_generate`, `load_lora` and `vllm_engine`."""
        self._model = model
        self._sleeps = bool(model.vllm_engine.llm_engine.vllm_config.model_config.enable_sleep_mode)
        self._folder = tempfile.TemporaryDirectory(prefix="gtpo-adapter-")
        self._adapter: Any = None
        self._sleep()

    def update(self, policy: Policy) -> None:
        adapter = self._model.load_lora(self._folder.name, load_tensors=True)  # Unsloth counts name and id up
        # What it holds are the tensors that train. vLLM multiplies alpha / rank into them in place where their type
        # is the engine's: that would change the policy. So it gets its own.
        adapter.lora_tensors = {name: tensor.detach().clone() for name, tensor in adapter.lora_tensors.items()}
        self._adapter = adapter

    def generate(self, prompts: Sequence[Prompt], params: Sequence[Any]) -> list[Any]:
        try:
            outputs: list[Any] = self._model.fast_generate(  # wakes the engine where it sleeps
                list(prompts), sampling_params=list(params), lora_request=self._adapter, use_tqdm=False
            )
        finally:  # whatever happened: training needs the memory, and so does the saving of an interrupted run
            self._sleep()
        return outputs

    def _sleep(self) -> None:
        if self._sleeps:
            self._model.vllm_engine.sleep(1)
