"""Which library holds the policy and which samples, where the recipe says auto."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from typing import Literal, NamedTuple

from gtpo_cli.errors import ModelError
from gtpo_cli.models.tiny import BUILTIN_PREFIX
from gtpo_cli.recipe.schema import Recipe

Backend = Literal["unsloth", "transformers"]
Engine = Literal["vllm", "transformers"]


class Engines(NamedTuple):
    """`backend` holds the policy, `engine` samples; `shared`: both work on the same weights in GPU memory."""

    backend: Backend
    engine: Engine
    shared: bool

    def __str__(self) -> str:
        if self.shared:
            return "Unsloth, sampling by its vLLM engine"
        names = {"unsloth": "Unsloth", "vllm": "vLLM", "transformers": "transformers"}
        same = self.backend == self.engine
        return names[self.backend] + ("" if same else f", sampling by {names[self.engine]}")


def choose_engines(recipe: Recipe, *, gpu: bool | None = None, installed: Collection[str] | None = None) -> Engines:
    """What the recipe means on this machine, or on one with or without a GPU and with these libraries.

    auto is Unsloth with its shared vLLM engine where a GPU, both libraries and an adapter are; transformers elsewhere,
    and for built-in models. Unsloth on a GPU always samples through vLLM. Raises ModelError for what cannot be.
    """
    if gpu is None:
        import torch

        gpu = torch.cuda.is_available()
    if installed is None:
        installed = {module for module in ("unsloth", "vllm") if importlib.util.find_spec(module) is not None}
    backend, engine = recipe.model.backend, recipe.rollout.engine
    if backend == "auto":
        here = gpu and recipe.model.lora is not None and {"unsloth", "vllm"} <= set(installed)
        wanted = engine != "transformers" and not recipe.model.name.startswith(BUILTIN_PREFIX)
        backend = "unsloth" if here and wanted else "transformers"
    if engine == "auto":
        engine = "vllm" if backend == "unsloth" and gpu else "transformers"
    if backend == "unsloth" and engine == "transformers" and gpu:
        raise ModelError(
            "rollout.engine: transformers cannot sample from a policy that Unsloth holds on a GPU; use engine: vllm "
            "(the two share the weights), or model.backend: transformers"
        )
    return Engines(backend, engine, shared=gpu and (backend, engine) == ("unsloth", "vllm"))
