"""The policy on Unsloth: its loading, its kernels and its switches; the mathematics is that of TransformersPolicy.

On a GPU Unsloth replaces the model's forward by kernels of its own, hands out the final hidden states in place of the
logits when UNSLOTH_RETURN_HIDDEN_STATES is set, and can start a vLLM engine on the same weights (fast inference). Its
CPU backend (2026.10.9 and later) is stock transformers with PEFT behind the same calls, and has neither.
Tested on the CPU backend; docs/engines.md says what has not been run on a GPU.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.errors import ModelError
from gtpo_cli.models.loading import choose_dtype, explained, load_tokenizer
from gtpo_cli.models.transformers_policy import TransformersPolicy
from gtpo_cli.recipe.schema import ModelRecipe

_HIDDEN_STATES = "UNSLOTH_RETURN_HIDDEN_STATES"


class UnslothPolicy(TransformersPolicy):
    """Implements `gtpo_cli.models.policy.Policy` on a model that Unsloth loaded; see there for the contract."""

    _may_pack = False  # Unsloth's attention takes no other; each completion is a padded row with its prompt

    @property
    def shares_engine(self) -> bool:
        """Whether the model holds a vLLM engine on the same weights."""
        return getattr(self.model, "vllm_engine", None) is not None

    def _set_mode(self, *, training: bool) -> None:
        # for_inference is for sampling: its kernels expect a cache. Measuring uses the training forward.
        _fast_language_model().for_training(self.model)
        self.model.train(training)

    def _hidden_states(self, causal_lm: Any, ids_RW: Tensor) -> Tensor:
        weight, _ = self.lm_head
        vocabulary, width = weight.shape
        if vocabulary == width:  # the two could not be told apart
            return super()._hidden_states(causal_lm, ids_RW)
        with _environment(_HIDDEN_STATES, "1"):
            output: Tensor = self.model(input_ids=ids_RW, use_cache=False).logits
        if output.shape[-1] == width:
            return output
        if output.shape[-1] != vocabulary:
            raise ModelError(
                f"Unsloth returned {output.shape[-1]} numbers a token, neither hidden states ({width}) nor logits "
                f"({vocabulary}); use model.backend: transformers, and report this with Unsloth's version"
            )
        return super()._hidden_states(causal_lm, ids_RW)  # logits after all: the CPU backend, or a model left as it was


def load_unsloth_policy(
    recipe: ModelRecipe,
    *,
    path: str,
    temperature: float,
    with_reference: bool,
    seed: int,
    engine_memory: float | None,
) -> UnslothPolicy:
    """Load model and tokenizer from `path` through Unsloth, and add the adapter; without `lora` all weights train.

    `engine_memory`: share of the GPU's memory for a vLLM engine on the same weights; None starts none.
    Raises ModelError with the remedy.
    """
    if engine_memory is not None:
        _check_engine(recipe)
    if with_reference and recipe.lora is None:
        raise ModelError("objective.kl_coef: a KL term with all weights trained needs model.backend: transformers")
    if recipe.load_in_4bit and recipe.lora is None:
        raise ModelError("model.load_in_4bit: 4-bit weights cannot train; set model.lora, or load_in_4bit: false")
    fast = _fast_language_model(with_engine=engine_memory is not None)
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    tokenizer = load_tokenizer(recipe, path)  # our own: Unsloth's may get other special tokens
    with explained(path), _silent():
        model, _ = fast.from_pretrained(
            model_name=path,
            max_seq_length=recipe.max_seq_length,
            dtype=choose_dtype(recipe.dtype, device),
            load_in_4bit=recipe.load_in_4bit,
            full_finetuning=recipe.lora is None,
            revision=recipe.revision,
            trust_remote_code=recipe.trust_remote_code,
            use_gradient_checkpointing=_checkpointing(recipe, device),
            **_engine_options(recipe, engine_memory),
        )
        if recipe.lora is not None:
            model = fast.get_peft_model(
                model,
                r=recipe.lora.rank,
                lora_alpha=recipe.lora.alpha,
                lora_dropout=recipe.lora.dropout,
                target_modules=list(recipe.lora.target_modules),
                use_gradient_checkpointing=_checkpointing(recipe, device),
                random_state=seed,
            )
    if engine_memory is not None and getattr(model, "vllm_engine", None) is None:
        raise ModelError(
            "rollout.engine: vllm was asked for, but Unsloth started no vLLM engine (it goes on without one where vLLM "
            "is missing or too old for this GPU): see its messages and gtpo doctor, or use model.backend: transformers"
        )
    if recipe.load_in_4bit and not any(type(module).__name__ == "Linear4bit" for module in model.modules()):
        raise ModelError(
            f"model.load_in_4bit: Unsloth loaded {path} without quantising it (bitsandbytes does not work here); "
            "set load_in_4bit: false, or install a bitsandbytes that fits"
        )
    return UnslothPolicy(model, tokenizer, temperature=temperature, max_seq_length=recipe.max_seq_length)


def _check_engine(recipe: ModelRecipe) -> None:
    """What Unsloth's shared engine cannot do. Unsloth would warn, or load another revision than was asked for."""
    if recipe.lora is None:
        raise ModelError("model.lora: Unsloth's shared vLLM engine samples with an adapter; set model.lora")
    if recipe.revision is not None:
        raise ModelError(
            "model.revision: Unsloth's shared vLLM engine takes no revision; download that revision and give its "
            "folder as model.name, or use model.backend: transformers"
        )
    if recipe.trust_remote_code:
        raise ModelError(
            "model.trust_remote_code: Unsloth's shared vLLM engine does not run a model's own code; use "
            "model.backend: transformers"
        )


def _engine_options(recipe: ModelRecipe, engine_memory: float | None) -> dict[str, Any]:
    if engine_memory is None:
        return {}
    assert recipe.lora is not None
    return {"fast_inference": True, "gpu_memory_utilization": engine_memory, "max_lora_rank": recipe.lora.rank}


def _checkpointing(recipe: ModelRecipe, device: torch.device) -> str | bool:
    """Unsloth's own checkpointing moves activations off the GPU; on a CPU there is nowhere to move them."""
    if not recipe.gradient_checkpointing:
        return False
    return "unsloth" if device.type == "cuda" else True


def _fast_language_model(*, with_engine: bool = False) -> Any:
    """Unsloth's entry point. It patches transformers and PEFT, and wants to be imported before them."""
    # Unsloth writes the kernels that it generates into the working folder unless told otherwise.
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(Path.home() / ".cache" / "gtpo" / "unsloth_compiled_cache"))
    if with_engine:  # both are read when Unsloth is imported
        os.environ.setdefault("UNSLOTH_VLLM_STANDBY", "1")  # the engine's cache sleeps while we train
        os.environ["UNSLOTH_VLLM_MERGED_ROLLOUT"] = "0"  # never fold the adapter into the weights that train
    if not torch.cuda.is_available():
        os.environ.setdefault("UNSLOTH_FORCE_CPU", "1")  # without it Unsloth refuses to load on a CPU
    try:
        with _silent():
            from unsloth import FastLanguageModel
    except ImportError as error:
        raise ModelError(
            f"model.backend: unsloth cannot be imported ({error}); on a GPU machine: pip install 'gtpo_cli[cuda]', "
            "on a CPU see docs/engines.md; or use model.backend: transformers"
        ) from error
    return FastLanguageModel


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable that a library reads at each call, and put back what was there."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Unsloth prints banners to standard output, which may be piped into another program."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
