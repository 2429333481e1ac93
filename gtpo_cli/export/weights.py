"""Writes the policy's weights, its own or its base's with the adapter merged in, and reads them back as a user would.

Merging goes into the base as it was published, never into its 4-bit rounding: W + alpha/rank * B A in float32, layer by
layer, rounded once to the type that is written. So it takes the memory of the base and a few layers more, and gives
what a merge of the whole model in float32 would give. The base's weights stand on the steps of its own type, and a
change of less than half a step is rounded away, so a type is written only where it holds what was trained.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from safetensors import SafetensorError

from gtpo_cli.checkpoints import Checkpoint
from gtpo_cli.errors import ExportError, GtpoError, ModelError
from gtpo_cli.export.check import Answer, Reference, measure_both
from gtpo_cli.export.rounding import adapter_changes, changes_of_all, dtype_that_holds
from gtpo_cli.export.using import public_name
from gtpo_cli.files import guarded, read_bytes, read_json
from gtpo_cli.models.adapter_config import check_adapted, check_adapter_config
from gtpo_cli.models.loading import (
    DTYPES,
    check_complete,
    check_finite,
    choose_dtype,
    dtype_name,
    explained,
    keep_weights_differentiable,
    load_config,
    nf4_config,
    quiet,
)
from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.text import describe, one_line

AUTO = "auto"
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILES = (_ADAPTER_CONFIG, "adapter_model.safetensors")


@dataclass(frozen=True, slots=True)
class Base:
    """Where the weights come from that an adapter is merged into: `path` is a folder or hub id."""

    path: str
    revision: str | None
    prequantized: bool  # there are no other weights than quantised ones


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: the weights' type, the base's public name, what it cost in sentences.

    `expected`: what the model should give to the answers, where that is not what the policy gave: it trained on a base
    in 4 bits, or on another.
    """

    dtype: str
    base: str
    notes: tuple[str, ...] = ()
    expected: Reference | None = None


def write_adapter(folder: Path, checkpoint: Checkpoint, recipe: ModelRecipe, tokenizer: Any, *, base: str) -> Written:
    """The adapter's weights, byte for byte; its configuration names `base`, from which PEFT and others load it."""

    def wrong(why: str) -> ExportError:
        return ExportError(f"{checkpoint.model}: the adapter cannot be read ({why}); choose another checkpoint")

    for name in _ADAPTER_FILES:
        with guarded(wrong):
            (folder / name).write_bytes(read_bytes(checkpoint.model / name))
    config = read_json(folder / _ADAPTER_CONFIG, dict[str, JsonValue], wrong)
    config |= {"base_model_name_or_path": base, "revision": recipe.revision}
    (folder / _ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _save(tokenizer, folder)
    note = "It needs its base, loaded as in training" + (" (4 bits, NF4)." if recipe.load_in_4bit else ".")
    return Written("float32", public_name(recipe.name), (note,))


def write_merged(
    folder: Path,
    checkpoint: Checkpoint,
    recipe: ModelRecipe,
    tokenizer: Any,
    *,
    dtype: str,
    base: str | None,
    revision: str | None,
    answers: Sequence[Answer],
    eos_token_ids: Sequence[int],
) -> Written:
    """The whole model as safetensors with configuration, generation settings and tokenizer.

    `dtype`: a name, or "auto": the base's own where that has 16 bits, else bfloat16; where this does not hold what an
    adapter changes, float16, else float32. `base`, `revision`: other weights to merge into than the recipe's. Raises
    ExportError, ModelError.
    """
    name, expected = base or recipe.name, None
    notes: tuple[str, ...] = ()
    if checkpoint.has_full_weights:
        model = _load(recipe, str(checkpoint.model), dtype=AUTO)
        chosen, notes = _dtype_of_all(model, recipe, dtype)
        model.to(chosen)
    else:
        found = _find_base(recipe, base, revision)
        adapted = _with_adapter(_load_full_precision(recipe, found), checkpoint.model)
        if base is not None or (recipe.load_in_4bit and not found.prequantized):
            expected = measure_both(adapted, answers)
        if found.prequantized:
            notes = (
                f"{public_name(name)} has only quantised weights: they were dequantised, so the rounding of the "
                "quantisation is in the merged weights. With the base in full precision (--base) it would not be.",
            )
        chosen, why = dtype_that_holds(
            partial(adapter_changes, adapted),
            _written_dtype(dtype, adapted.get_base_model().dtype),
            named=dtype != AUTO,
        )
        model, notes = _merged(adapted, chosen), notes + why
    _settle(model, tokenizer, eos_token_ids)
    _save(model, folder)
    _save(tokenizer, folder)
    return Written(dtype_name(model.dtype), public_name(name), notes, expected)


def read_back(format: str, folder: Path, recipe: ModelRecipe, device: torch.device) -> Any:
    """The model in the folder as plain transformers (and PEFT) load it, on `device` where it has room."""
    if format == "adapter":
        return _with_adapter(_load_trained_on(recipe, _find_base(recipe, None, None), device), folder)
    model = _read_gguf(folder) if format == "gguf" else _load(recipe, str(folder))
    try:
        return model.to(device)
    except torch.OutOfMemoryError:  # slower, and just as good
        torch.cuda.empty_cache()
        return model.to("cpu")


def _read_gguf(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    (file,) = folder.glob("*.gguf")

    def wrong(why: str) -> ExportError:
        return ExportError(
            f"{file.name}: was converted, but transformers cannot load it back, so it could not be compared ({why}); "
            "use --format merged, and convert that without the check if you trust the converter"
        )

    with guarded(wrong), quiet(), contextlib.redirect_stderr(io.StringIO()):  # its own bar
        return AutoModelForCausalLM.from_pretrained(str(folder), gguf_file=file.name)


def _find_base(recipe: ModelRecipe, name: str | None, revision: str | None) -> Base:
    """The base named by the user, else the recipe's. Raises ModelError."""
    path = resolve_name(recipe.name if name is None else name)
    revision = recipe.revision if name is None else revision
    config = load_config(recipe.model_copy(update={"revision": revision}), path)
    return Base(path, revision, getattr(config, "quantization_config", None) is not None)


def _load(recipe: ModelRecipe, path: str, revision: str | None = None, **options: Any) -> Any:
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


def _load_full_precision(recipe: ModelRecipe, base: Base) -> Any:
    """The base's weights in the type they were stored in, on the CPU; quantised ones dequantised to float32."""
    if not base.prequantized:
        return _load(recipe, base.path, base.revision, dtype=AUTO)
    nf4_config(torch.float32)  # raises where bitsandbytes is missing
    model = _load(recipe, base.path, base.revision, dtype=torch.float32)
    try:
        with quiet():
            plain = model.dequantize(dtype=torch.float32)
        steps = getattr(plain, "_weight_conversions", None) or ()
        plain._weight_conversions = [step for step in steps if _can_be_undone(step)]
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


def _load_trained_on(recipe: ModelRecipe, base: Base, device: torch.device) -> Any:
    """The base as the run trained on it: 4-bit where the recipe says so."""
    dtype = choose_dtype(recipe.dtype, device)
    if not recipe.load_in_4bit:
        return _load(recipe, base.path, base.revision, dtype=dtype).to(device)
    options = {"quantization_config": nf4_config(dtype), "device_map": {"": device}}
    model = _load(recipe, base.path, base.revision, dtype=dtype, **options)
    keep_weights_differentiable(model)  # the same forward as the policy's
    return model


def _with_adapter(model: Any, folder: Path) -> Any:
    """The model with the adapter in `folder`, not merged. Raises ExportError where it does not fit."""
    from peft import PeftModel

    check_adapter_config(folder)
    try:
        adapted = PeftModel.from_pretrained(model, str(folder))
        check_adapted(adapted)
        return adapted
    except GtpoError:
        raise
    except Exception as error:
        said = describe(error)
        if isinstance(error, RuntimeError) and "size mismatch" not in said:
            raise ExportError(f"{folder}: the adapter cannot be put on its base: {said}") from error
        raise ExportError(
            f"{folder}: the adapter does not fit this base ({said}); is --base the base that the run trained on?"
        ) from error


def _merged(model: Any, dtype: torch.dtype) -> Any:
    """The base of a PeftModel with the adapter in its weights, in `dtype`. The PeftModel is used up.

    Raises ExportError for weights that are not finite.
    """
    from peft.tuners.lora import LoraLayer

    for layer in (module for module in model.modules() if isinstance(module, LoraLayer)):
        layer.to(torch.float32)
        try:
            layer.merge(safe_merge=True)
        except ValueError as error:
            raise ExportError(f"the merged weights are not finite ({error}); choose another checkpoint") from error
        layer.get_base_layer().to(dtype)
    return model.unload().to(dtype)


def _dtype_of_all(model: Any, recipe: ModelRecipe, name: str) -> tuple[torch.dtype, tuple[str, ...]]:
    """The type to write all trained weights in, and notes; the run's model as it was tells what training changed."""
    wanted = _written_dtype(name, model.dtype)
    if wanted == model.dtype:
        return wanted, ()
    try:
        found = _find_base(recipe, None, None)
        base = _load(recipe, found.path, found.revision, dtype=AUTO)
    except ModelError:  # it may be gone by now
        text = f"The model that training started from is not there, so what {dtype_name(wanted)} holds is not known."
        return wanted, (text,)
    return dtype_that_holds(partial(changes_of_all, model, base), wanted, named=name != AUTO)


def _written_dtype(name: str, stored: torch.dtype) -> torch.dtype:
    if name != AUTO:
        return DTYPES[name]
    return stored if stored in (torch.bfloat16, torch.float16) else torch.bfloat16


def _settle(model: Any, tokenizer: Any, eos_token_ids: Sequence[int]) -> None:
    """Let others stop and pad where training did, and forget where the model came from on this machine."""
    model.config._name_or_path = ""
    settings = model.generation_config
    settings.eos_token_id = list(eos_token_ids) if len(eos_token_ids) > 1 else eos_token_ids[0]
    settings.pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos_token_ids[0]
    if not settings.do_sample:  # transformers refuses to save what would have no effect
        settings.temperature = settings.top_p = settings.top_k = None


def _save(what: Any, folder: Path) -> None:
    """Raises OSError where the disk refuses, whatever the libraries call that."""
    try:
        with quiet():
            what.save_pretrained(folder)
    except (RuntimeError, SafetensorError, ValueError) as error:
        raise OSError(errno.EIO, one_line(str(error)) or type(error).__name__) from error
