"""Full weights of a policy: its own, or its base's with the adapter merged in.

Merging goes into the base as it was published, never into its 4-bit rounding: W + alpha/rank * B A in float32, layer by
layer, rounded once to the type that is written. So it takes the memory of the base and one layer more, and gives what a
merge of the whole model in float32 would give.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gtpo_cli.errors import ExportError, GtpoError
from gtpo_cli.evaluation.subject import Checkpoint
from gtpo_cli.models.loading import (
    DTYPES,
    check_adapter_config,
    check_complete,
    check_finite,
    choose_dtype,
    explained,
    keep_weights_differentiable,
    load_config,
    nf4_config,
    quiet,
)
from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.text import describe

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Base:
    """Where the weights come from that an adapter is merged into: `path` is a folder or hub id."""

    path: str
    revision: str | None
    prequantized: bool  # there are no other weights than quantised ones


def find_base(recipe: ModelRecipe, name: str | None, revision: str | None) -> Base:
    """The base named by the user, else the recipe's. Raises ModelError."""
    path = resolve_name(recipe.name if name is None else name)
    revision = recipe.revision if name is None else revision
    config = load_config(recipe.model_copy(update={"revision": revision}), path)
    return Base(path, revision, getattr(config, "quantization_config", None) is not None)


def load_causal_lm(recipe: ModelRecipe, path: str, revision: str | None = None, **options: Any) -> Any:
    """A causal language model as transformers loads it; `options` go to from_pretrained. Raises ModelError."""
    from transformers import AutoModelForCausalLM

    load_config(recipe.model_copy(update={"revision": revision}), path)  # refuses what could not be built
    with explained(path):
        model, loading = AutoModelForCausalLM.from_pretrained(
            path, revision=revision, trust_remote_code=recipe.trust_remote_code, output_loading_info=True, **options
        )
    check_complete(path, loading["missing_keys"])
    check_finite(path, model)
    return model


def load_full_precision(recipe: ModelRecipe, base: Base) -> Any:
    """The base's weights in the type they were stored in, on the CPU; quantised ones dequantised to float32."""
    if not base.prequantized:
        return load_causal_lm(recipe, base.path, base.revision, dtype=AUTO)
    nf4_config(torch.float32)  # raises where bitsandbytes is missing
    model = load_causal_lm(recipe, base.path, base.revision, dtype=torch.float32)
    try:
        with quiet():
            plain = model.dequantize(dtype=torch.float32)
        plain._weight_conversions = [
            step for step in getattr(plain, "_weight_conversions", None) or () if _can_be_undone(step)
        ]
        return plain
    except (ValueError, NotImplementedError) as error:
        raise ExportError(
            f"{base.path}: its weights are quantised in a way that cannot be undone ({error}); name a base in full "
            "precision with --base, or use --format adapter"
        ) from error


def _can_be_undone(conversion: Any) -> bool:
    """Saving undoes what loading did to the weights; quantising, which loading did too, is undone by now."""
    try:
        conversion.reverse_transform()
    except NotImplementedError:
        return False
    return True


def load_trained_on(recipe: ModelRecipe, base: Base, device: torch.device) -> Any:
    """The base as the run trained on it: 4-bit where the recipe says so."""
    dtype = choose_dtype(recipe.dtype, device)
    if not recipe.load_in_4bit:
        return load_causal_lm(recipe, base.path, base.revision, dtype=dtype).to(device)
    options = {"quantization_config": nf4_config(dtype), "device_map": {"": device}}
    model = load_causal_lm(recipe, base.path, base.revision, dtype=dtype, **options)
    keep_weights_differentiable(model)  # the same forward as the policy's
    return model


def with_adapter(model: Any, folder: Path) -> Any:
    """The model with the adapter in `folder`, not merged. Raises ExportError where it does not fit."""
    from peft import PeftModel

    check_adapter_config(folder)
    try:
        return PeftModel.from_pretrained(model, str(folder))
    except GtpoError:
        raise
    except Exception as error:
        said = describe(error)
        if isinstance(error, RuntimeError) and "size mismatch" not in said:
            raise ExportError(f"{folder}: the adapter cannot be put on its base: {said}") from error
        raise ExportError(
            f"{folder}: the adapter does not fit this base ({said}); is --base the base that the run trained on?"
        ) from error


def merged(model: Any, dtype: torch.dtype) -> Any:
    """The base of a PeftModel with the adapter in its weights, in `dtype`. The PeftModel is used up.

    Raises ExportError for weights that are not finite, and for an adapter on weights that another layer shares.
    """
    from peft.tuners.lora import LoraLayer

    base = model.get_base_model()
    _check_not_shared(base)
    for layer in (module for module in model.modules() if isinstance(module, LoraLayer)):
        layer.to(torch.float32)
        try:
            layer.merge(safe_merge=True)
        except ValueError as error:
            raise ExportError(f"the merged weights are not finite ({error}); choose another checkpoint") from error
        layer.get_base_layer().to(dtype)
    return model.unload().to(dtype)


def own_weights(recipe: ModelRecipe, checkpoint: Checkpoint) -> Any:
    """The model of a checkpoint that trained all weights, in the type it was saved in."""
    return load_causal_lm(recipe, str(checkpoint.model), dtype=AUTO)


def written_dtype(name: str, stored: torch.dtype) -> torch.dtype:
    """The type to write: the one named; `auto` is the base's own where that has 16 bits, else bfloat16."""
    if name != AUTO:
        return DTYPES[name]
    return stored if stored in (torch.bfloat16, torch.float16) else torch.bfloat16


def _check_not_shared(base: Any) -> None:
    """An adapter on one of two layers that share a weight would change both when it is merged."""
    embedding, output = base.get_input_embeddings(), base.get_output_embeddings()
    adapted = [layer for layer in (embedding, output) if hasattr(layer, "get_base_layer")]
    if adapted and _weight(embedding) is _weight(output):
        raise ExportError(
            "the run's adapter is on the output layer, which shares its weights with the embedding: merging would "
            "change both; use --format adapter"
        )


def _weight(layer: Any) -> Any:
    return layer.get_base_layer().weight if hasattr(layer, "get_base_layer") else layer.weight
