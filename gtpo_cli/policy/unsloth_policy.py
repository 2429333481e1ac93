"""The policy on Unsloth: loading, kernels and switches. The mathematics is that of TransformersPolicy.

On a GPU Unsloth replaces the model's forward by its own kernels, and can start a vLLM engine on the same weights (fast
inference). Its CPU backend (2026.10.9 and later) is stock transformers with PEFT behind the same calls. docs/engines.md
lists which test covers which part.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.errors import ModelError, install
from gtpo_cli.job import ModelFiles
from gtpo_cli.policy.loading import check_finite, choose_dtype, explained
from gtpo_cli.policy.packing import Packed, packed_hidden_states, use_packed_attention_in_unsloth
from gtpo_cli.policy.transformers_policy import TransformersPolicy, adapter_targets
from gtpo_cli.policy.vllm_start import capture_graphs_with_adapter, prepare_vllm
from gtpo_cli.recipe.schema import ModelRecipe, RolloutRecipe

# Unsloth reads these when it is imported or starts an engine.
_ENGINE_SETTINGS = {
    "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE": "1",  # use the recipe's gpu_memory_utilization, not 0.71 to 0.88
    "UNSLOTH_VLLM_MERGED_ROLLOUT": "0",  # never fold the adapter into the weights that train
}
_UNSET_SEQUENCES = 256  # Unsloth replaces this number by one from 8 to 256, depending on free memory


class UnslothPolicy(TransformersPolicy):
    """Implements `gtpo_cli.policy.policy.Policy`, which documents the methods, on a model that Unsloth loaded."""

    @property
    def shares_engine(self) -> bool:
        """Whether the model has a vLLM engine on the same weights."""
        return getattr(self.model, "vllm_engine", None) is not None

    def _set_mode(self, *, training: bool) -> None:
        # for_inference is for sampling, since its kernels expect a cache. Measuring uses the training forward.
        from unsloth import FastLanguageModel

        FastLanguageModel.for_training(self.model)
        self.model.train(training)

    def _use_packed_attention(self, causal_lm: Any) -> None:
        if _has_unsloths_forward(causal_lm):
            use_packed_attention_in_unsloth()
        else:
            super()._use_packed_attention(causal_lm)

    def _packed_states(self, causal_lm: Any, packed: Packed) -> Tensor:
        return packed_hidden_states(causal_lm.base_model, packed, in_unsloth=_has_unsloths_forward(causal_lm))


def _has_unsloths_forward(causal_lm: Any) -> bool:
    """Return whether Unsloth replaced the forward. Its CPU backend keeps that of transformers."""
    module: str = type(causal_lm.base_model).forward.__module__
    return module.startswith("unsloth.")


def load_unsloth_policy(
    recipe: ModelRecipe,
    *,
    files: ModelFiles,
    temperature: float,
    with_reference: bool,
    seed: int,
    engine: RolloutRecipe | None,
    trains: bool = True,
) -> UnslothPolicy:
    """Load the model's weights through Unsloth, and add the adapter; without `lora` all weights train.

    `trains`: as in `load_policy`. `engine`: the settings for a vLLM engine on the same weights; None starts none. It is
    awake until its sampler puts it to sleep. Raises ModelError with the remedy.
    """
    if engine is not None:
        _check_engine(recipe)
    if with_reference and recipe.lora is None:
        raise ModelError("objective.kl_coef: a KL term with all weights trained needs model.backend: transformers")
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    dtype = choose_dtype(recipe.dtype, device)
    if trains and recipe.lora is None and dtype != torch.float32:
        raise ModelError(
            "model.lora: null trains all weights, which Unsloth would keep in 16 bits; use model.backend: "
            "transformers, or model.dtype: float32"
        )
    fast = _fast_language_model(engine)
    path, tokenizer = files.path, files.tokenizer  # not Unsloth's tokenizer, which may have other special tokens
    longest = files.context  # for longer rows Unsloth would stretch positions (RoPE scaling)
    can_sleep = (
        recording_what_sleeps() if engine is not None and engine.standby != "never" else contextlib.nullcontext()
    )
    with explained(path), _library_output(), _speculation(engine), can_sleep:
        if engine is not None:
            capture_graphs_with_adapter(engine)
        model, _ = fast.from_pretrained(
            model_name=path,
            max_seq_length=longest,
            dtype=dtype,
            load_in_4bit=recipe.load_in_4bit,
            full_finetuning=recipe.lora is None,
            revision=recipe.revision,
            trust_remote_code=recipe.trust_remote_code,
            use_gradient_checkpointing=_checkpointing(recipe),
            use_exact_model_name=True,  # otherwise Unsloth may load its own repository instead
            **({} if engine is None else _engine_options(recipe, engine)),
        )
        check_finite(path, model)
        if recipe.lora is not None:
            model = fast.get_peft_model(
                model,
                r=recipe.lora.rank,
                lora_alpha=recipe.lora.alpha,
                lora_dropout=0.0,
                target_modules=adapter_targets(model, recipe.lora),
                use_gradient_checkpointing=_checkpointing(recipe),
                random_state=seed,
            )
    if engine is not None:
        _check_started(model, longest)
        if not trains:  # Unsloth's kernels round the adapter to this type anyway
            for parameter in model.parameters():
                parameter.data = parameter.data.to(dtype) if parameter.requires_grad else parameter.data
    if recipe.lora is not None and not hasattr(model, "peft_config"):
        raise ModelError(f"model.lora: Unsloth added no adapter to {path}; use model.backend: transformers")
    if recipe.load_in_4bit and not any(type(module).__name__ == "Linear4bit" for module in model.modules()):
        raise ModelError(
            f"model.load_in_4bit: Unsloth loaded {path} without quantising it (bitsandbytes does not work here); "
            "set load_in_4bit: false, or install a bitsandbytes that works here"
        )
    return UnslothPolicy(model, tokenizer, temperature=temperature, max_seq_length=recipe.max_seq_length, dtype=dtype)


def _check_engine(recipe: ModelRecipe) -> None:
    """Raise ModelError for settings that Unsloth's shared engine does not support.

    Unsloth would only warn, or load another revision.
    """
    if recipe.lora is None:
        raise ModelError("model.lora: Unsloth's shared vLLM engine samples with an adapter; set model.lora")
    if recipe.revision is not None:
        raise ModelError(
            "model.revision: Unsloth's shared vLLM engine cannot load a revision; download it and give its folder as "
            "model.name, or use model.backend: transformers"
        )
    if recipe.trust_remote_code:
        raise ModelError(
            "model.trust_remote_code: Unsloth's shared vLLM engine does not run a model's own code; use "
            "model.backend: transformers"
        )


def _check_started(model: Any, longest: int) -> None:
    """Raise ModelError if Unsloth started no engine or one for shorter rows; Unsloth itself only prints a warning."""
    engine = getattr(model, "vllm_engine", None)
    if engine is None:
        raise ModelError(
            "rollout.engine: vllm was requested, but Unsloth started no vLLM engine (it continues without one if vLLM "
            "is missing or too old for this GPU); see gtpo doctor, or use model.backend: transformers"
        )
    rows = engine.llm_engine.vllm_config.model_config.max_model_len
    if rows < longest:
        raise ModelError(
            f"rollout.gpu_memory_utilization: the engine's share only fits rows of {rows:,} tokens, but "
            f"model.max_seq_length is {longest:,}; raise the share or lower the length (gtpo plan shows what fits)"
        )


def _engine_options(recipe: ModelRecipe, rollout: RolloutRecipe) -> dict[str, Any]:
    """Return the engine's settings as arguments of Unsloth's `from_pretrained` and `load_vllm`."""
    assert recipe.lora is not None
    options = {
        "fast_inference": True,
        "gpu_memory_utilization": rollout.engine_share,
        "max_lora_rank": recipe.lora.rank,
        "float8_kv_cache": rollout.vllm.get("kv_cache_dtype") == "fp8",
        **{key: value for key, value in rollout.vllm.items() if key not in ("kv_cache_dtype", "speculative_config")},
    }
    if rollout.speculation is not None:  # with it vLLM's processed log-probabilities are wrong, raw ones equal
        options["training"] = False
    if rollout.max_num_seqs != "auto":
        options["max_num_seqs"] = rollout.max_num_seqs + (rollout.max_num_seqs == _UNSET_SEQUENCES)
    return options


@contextlib.contextmanager
def _speculation(rollout: RolloutRecipe | None) -> Iterator[None]:
    """Make Unsloth fit sequences and tokens at a time to speculative decoding.

    Its own switch (UNSLOTH_VLLM_SUFFIX_DECODING) supports one method, but the adjustment is right for all.
    """
    if rollout is None or rollout.speculation is None:
        yield
        return
    from unsloth_zoo import vllm_utils

    own = vllm_utils._vllm_suffix_decoding_config
    vllm_utils._vllm_suffix_decoding_config = lambda: rollout.speculation
    try:
        yield
    finally:
        vllm_utils._vllm_suffix_decoding_config = own


def _checkpointing(recipe: ModelRecipe) -> str | bool:
    """Return the checkpointing option. Unsloth's own moves activations off the GPU, which makes no sense on a CPU."""
    if not recipe.gradient_checkpointing:
        return False
    return "unsloth" if torch.cuda.is_available() else True


def _fast_language_model(engine: RolloutRecipe | None = None) -> Any:
    """Import Unsloth's entry point, which patches the models of transformers and PEFT.

    It warns if transformers was imported before it, which reads the tokenizer. On an H100 its kernels ran all the same.
    """
    warnings.filterwarnings("ignore", "WARNING: Unsloth should be imported before", UserWarning)
    # By default Unsloth writes generated kernels into the working folder.
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(Path.home() / ".cache" / "gtpo" / "unsloth_compiled_cache"))
    os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"  # otherwise it fetches a file from the hub to be counted
    # This excludes its kernel for rows that share prompts, which is under the AGPL; packing.py replaces it.
    os.environ.setdefault("UNSLOTH_GRPO_PREFIX_GROUPER", "0")
    if engine is not None:
        prepare_vllm()
        os.environ.update(_ENGINE_SETTINGS)
        os.environ["UNSLOTH_VLLM_STANDBY"] = "0" if engine.standby == "never" else "1"  # whether it can sleep
    if not torch.cuda.is_available():
        os.environ.setdefault("UNSLOTH_FORCE_CPU", "1")  # without it Unsloth refuses to load on a CPU
    try:
        with _library_output():
            from unsloth import FastLanguageModel
    except ImportError as error:
        raise ModelError(
            f"model.backend: unsloth cannot be imported ({error}); on a GPU machine: {install('cuda')}, "
            "on a CPU see docs/engines.md; or use model.backend: transformers"
        ) from error
    return FastLanguageModel


class _Chatter(io.TextIOBase):
    """Replaces standard output while libraries load. Log handlers may keep it; later it writes to standard error."""

    def __init__(self) -> None:
        self.kept: list[str] | None = []

    def write(self, text: str) -> int:
        if self.kept is None:
            return sys.stderr.write(text)
        self.kept.append(text)
        return len(text)

    def flush(self) -> None:
        if self.kept is None:
            sys.stderr.flush()


@contextlib.contextmanager
def _library_output() -> Iterator[None]:
    """Catch the banners that libraries print to standard output, which may be piped into another program.

    If loading fails, they are shown on standard error.
    """
    chatter = _Chatter()
    try:
        with contextlib.redirect_stdout(chatter):
            yield
    except BaseException:
        sys.stderr.write("".join(chatter.kept or ()))
        raise
    finally:
        chatter.kept = None


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
