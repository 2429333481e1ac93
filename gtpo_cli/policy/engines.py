"""The choice of the libraries that hold the policy and that sample, and the combinations that none of them support."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection

from gtpo_cli.errors import ModelError, pip_install
from gtpo_cli.job import Engines
from gtpo_cli.policy.tiny import BUILTIN_PREFIX
from gtpo_cli.recipe.schema import BFLOAT16, LARGEST_RANK, ModelRecipe, Recipe, RolloutRecipe

PLUGIN = "vllm_bnb_plugin"  # vLLM needs it for 4-bit weights since 0.28
LIBRARIES = ("unsloth", "vllm", PLUGIN)


def choose_engines(
    recipe: Recipe, *, gpu: bool, installed: Collection[str], capability: tuple[int, int] | None = None
) -> Engines:
    """Resolve the recipe's engines for a machine with or without a GPU, by default a recent one, and these libraries.

    auto means Unsloth with its shared vLLM engine if that can start (`why_not_shared`), else transformers. On a GPU
    Unsloth always samples with vLLM. Raises ModelError for impossible combinations.
    """
    backend, engine = recipe.model.backend, recipe.rollout.engine
    if backend == "auto":
        shared = gpu and _auto_wants_shared(recipe) and why_not_shared(recipe.model, installed, capability) is None
        backend = "unsloth" if shared else "transformers"
    if engine == "auto":
        engine = "vllm" if backend == "unsloth" and gpu else "transformers"
    if backend == "unsloth" and engine == "transformers" and gpu:
        raise ModelError(
            "rollout.engine: transformers cannot sample from a policy that Unsloth holds on a GPU; use engine: vllm "
            "(the two share the weights), or model.backend: transformers"
        )
    lora = recipe.model.lora
    if engine == "vllm" and lora is not None and lora.rank > LARGEST_RANK:
        raise ModelError(
            f"model.lora.rank: vLLM takes adapters up to rank {LARGEST_RANK}, and this one has rank {lora.rank}; lower "
            "it, or use rollout.engine: transformers with model.backend: transformers"
        )
    if engine == "vllm" and recipe.model.load_in_4bit and "vllm" in installed and PLUGIN not in installed:
        raise ModelError(
            "rollout.engine: vLLM takes 4-bit weights only with vllm-bnb-plugin, which is not installed: "
            f"{pip_install()} vllm-bnb-plugin (it is in the extra cuda), or rollout.engine: transformers with "
            "model.backend: transformers, or model.load_in_4bit: false"
        )
    if engine == "vllm" and backend == "transformers" and gpu and is_float32(recipe.model, capability):
        raise ModelError(
            "rollout.engine: on a GPU vLLM takes adapters only with 16-bit models, but this is float32 (model.dtype); "
            "use model.dtype: bfloat16 (float16 before compute capability 8.0), or rollout.engine: transformers"
        )
    if backend == "unsloth" and gpu and (reason := _not_in_unsloth(recipe.model, capability)):
        raise ModelError(
            f"model.backend: unsloth cannot be used here: {reason}; --set model.backend=transformers "
            "--set rollout.engine=transformers --set model.dtype=float32 works, with less speed and more memory"
        )
    return Engines(backend, engine, shared=gpu and (backend, engine) == ("unsloth", "vllm"))


def about_compiling(rollout: RolloutRecipe, engines: Engines) -> str | None:
    """Explain why vLLM's start takes minutes; None if it compiles nothing."""
    if engines.engine != "vllm" or rollout.vllm.get("enforce_eager") or gpu_capability() is None:
        return None
    return (
        "vLLM's first start with a model takes minutes, because it compiles; later starts reuse the result in "
        "~/.cache/vllm (or $VLLM_CACHE_ROOT)"
    )


def on_transformers(recipe: Recipe) -> Recipe:
    """Return the recipe with policy and sampling on plain transformers."""
    return recipe.with_values({"model.backend": "transformers", "rollout.engine": "transformers"})


def gpu_capability() -> tuple[int, int] | None:
    """Return the compute capability of this machine's GPU, (8, 0) for an A100; None without a GPU."""
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def installed_libraries() -> set[str]:
    return {module for module in LIBRARIES if importlib.util.find_spec(module) is not None}


def why_auto_is_slow(recipe: Recipe) -> str | None:
    """Return why `auto` does not use the shared engine on this machine's GPU; None if it does, or without a GPU."""
    capability = gpu_capability()
    if capability is None or recipe.model.backend != "auto" or not _auto_wants_shared(recipe):
        return None
    return why_not_shared(recipe.model, installed_libraries(), capability)


def _auto_wants_shared(recipe: Recipe) -> bool:
    return recipe.rollout.engine != "transformers" and not recipe.model.name.startswith(BUILTIN_PREFIX)


def why_not_shared(
    model: ModelRecipe, installed: Collection[str], capability: tuple[int, int] | None = None
) -> str | None:
    """Return why Unsloth with its shared vLLM engine cannot hold a recipe's model on a GPU; None if it can."""
    if model.lora is None:
        return "it needs an adapter (model.lora)"
    if model.lora.rank > LARGEST_RANK:
        return f"vLLM takes adapters up to rank {LARGEST_RANK} (model.lora.rank)"
    needed = LIBRARIES if model.load_in_4bit else LIBRARIES[:2]
    if missing := [name.replace("_", "-") for name in needed if name not in installed]:
        return f"{', '.join(missing)} not installed"
    return _not_in_unsloth(model, capability)


def is_float32(model: ModelRecipe, capability: tuple[int, int] | None) -> bool:
    """Return whether the model computes in float32. As in policy/loading.py, auto is bfloat16 if the GPU has it."""
    lacks_bfloat16 = capability is not None and capability < BFLOAT16
    return model.dtype == "float32" or (model.dtype == "auto" and lacks_bfloat16)


def _not_in_unsloth(model: ModelRecipe, capability: tuple[int, int] | None) -> str | None:
    """Return why Unsloth's engine cannot compute in the model's type. It uses 16 bits (`load_vllm` refuses float32).

    Before compute capability 8.0 that is float16, in which small gradients of activations become 0.
    """
    if capability is not None and capability < BFLOAT16:
        return (
            f"a GPU of compute capability {capability[0]}.{capability[1]} has no bfloat16 (8.0 and later have), and in "
            "float16 small gradients become 0"
        )
    return "its vLLM engine does not compute in float32 (model.dtype)" if model.dtype == "float32" else None
