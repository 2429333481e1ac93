"""The policy on Unsloth: its loading, its kernels and its switches; the mathematics is that of TransformersPolicy.

On a GPU Unsloth replaces the model's forward by kernels of its own, and hands out the final hidden states in place of
the logits when UNSLOTH_RETURN_HIDDEN_STATES is set. Its CPU backend (2026.10.9 and later) is stock transformers with
PEFT behind the same calls, and knows no such switch. Tested here on the CPU backend.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.errors import ModelError
from gtpo_cli.models.transformers_policy import (
    TransformersPolicy,
    choose_dtype,
    load_failure,
    load_tokenizer,
    quiet,
)
from gtpo_cli.recipe.schema import ModelRecipe

_HIDDEN_STATES = "UNSLOTH_RETURN_HIDDEN_STATES"


class UnslothPolicy(TransformersPolicy):
    """Implements `gtpo_cli.models.policy.Policy` on a model that Unsloth loaded; see there for the contract."""

    def _set_mode(self, *, training: bool) -> None:
        # for_inference is for sampling: its kernels expect a cache. Measuring uses the training forward.
        _fast_language_model().for_training(self.model)
        self.model.train(training)

    def _hidden_states(self, ids_NW: Tensor) -> Tensor:
        weight, _ = self.lm_head
        vocabulary, width = weight.shape
        if vocabulary == width:  # the two could not be told apart
            return super()._hidden_states(ids_NW)
        with _environment(_HIDDEN_STATES, "1"):
            output: Tensor = self.model(input_ids=ids_NW, use_cache=False).logits
        if output.shape[-1] == width:
            return output
        if output.shape[-1] != vocabulary:
            raise ModelError(
                f"Unsloth returned {output.shape[-1]} numbers a token, neither hidden states ({width}) nor logits "
                f"({vocabulary}); use model.backend: transformers, and report this with Unsloth's version"
            )
        return super()._hidden_states(ids_NW)  # logits after all: the CPU backend, or a model Unsloth left as it was


def load_unsloth_policy(
    recipe: ModelRecipe, *, path: str, temperature: float, with_reference: bool, seed: int
) -> UnslothPolicy:
    """Load model and tokenizer from `path` through Unsloth, and add the adapter; without `lora` all weights train.

    Raises ModelError with the remedy.
    """
    if with_reference and recipe.lora is None:
        raise ModelError("objective.kl_coef: a KL term with all weights trained needs model.backend: transformers")
    if recipe.load_in_4bit and recipe.lora is None:
        raise ModelError("model.load_in_4bit: 4-bit weights cannot train; set model.lora, or load_in_4bit: false")
    fast = _fast_language_model()
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    tokenizer = load_tokenizer(recipe, path)  # our own: Unsloth's may get other special tokens
    try:
        with quiet(), _silent():
            model, _ = fast.from_pretrained(
                model_name=path,
                max_seq_length=recipe.max_seq_length,
                dtype=choose_dtype(recipe.dtype, device),
                load_in_4bit=recipe.load_in_4bit,
                full_finetuning=recipe.lora is None,
                revision=recipe.revision,
                trust_remote_code=recipe.trust_remote_code,
                use_gradient_checkpointing=_checkpointing(recipe, device),
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
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, NotImplementedError) as error:
        raise ModelError(load_failure(path, error)) from error
    if recipe.load_in_4bit and not getattr(model, "is_loaded_in_4bit", False):
        raise ModelError(
            f"model.load_in_4bit: Unsloth loaded {path} without quantising it (bitsandbytes does not work here); "
            "set load_in_4bit: false, or install a bitsandbytes that fits"
        )
    return UnslothPolicy(model, tokenizer, temperature=temperature, max_seq_length=recipe.max_seq_length)


def _checkpointing(recipe: ModelRecipe, device: torch.device) -> str | bool:
    """Unsloth's own checkpointing moves activations off the GPU; on a CPU there is nowhere to move them."""
    if not recipe.gradient_checkpointing:
        return False
    return "unsloth" if device.type == "cuda" else True


def _fast_language_model() -> Any:
    """Unsloth's entry point. It patches transformers and PEFT, and wants to be imported before them."""
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
