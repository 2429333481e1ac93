"""Write the policy's weights, full or merged with the adapter, and load them as a user would.

An adapter is merged into the published base, not into its 4-bit rounding. Each layer's W + alpha/rank * B A is computed
in float32 and rounded once to the written type. So it needs little more memory than the base, and equals a merge of the
whole model in float32. A change below half a step of the type would be rounded away, so the type must hold the changes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from safetensors import SafetensorError
from torch import Tensor

from gtpo_cli.errors import ExportError, GtpoError, ModelError
from gtpo_cli.policy.adapter_config import check_adapted, check_adapter_config
from gtpo_cli.policy.loading import (
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
from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.runs.checkpoints import Checkpoint
from gtpo_cli.runs.files import guarded, open_regular, read_json
from gtpo_cli.text import describe, one_line
from gtpo_cli.tools.export.check import Answer, Reference, measure_both
from gtpo_cli.tools.export.using import public_name

AUTO = "auto"
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILES = (_ADAPTER_CONFIG, "adapter_model.safetensors")


@dataclass(frozen=True, slots=True)
class Base:
    """The base that an adapter is merged into. `path` is a folder or hub id."""

    path: str
    revision: str | None
    prequantized: bool  # only quantised weights exist


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: the weights' type, the base's public name, and sentences about losses.

    `expected`: the expected measurements, if they differ from the policy's because it trained on another base or in 4
    bits.
    """

    dtype: str
    base: str
    notes: tuple[str, ...] = ()
    expected: Reference | None = None


def write_adapter(folder: Path, checkpoint: Checkpoint, recipe: ModelRecipe, tokenizer: Any, *, base: str) -> Written:
    """Copy the adapter's weights unchanged. Its configuration names `base`, which PEFT and others load."""

    def wrong(why: str) -> ExportError:
        return ExportError(f"{checkpoint.model}: the adapter cannot be read ({why}); choose another checkpoint")

    for name in _ADAPTER_FILES:
        with guarded(wrong), open_regular(checkpoint.model / name) as source, (folder / name).open("xb") as copy:
            shutil.copyfileobj(source, copy)
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
    """Write the whole model as safetensors, with configuration, generation settings and tokenizer.

    `dtype`: a name, or "auto" for the base's type if it has 16 bits, else bfloat16; if that does not hold the adapter's
    changes, float16 or else float32. `base`, `revision`: weights to merge into instead of the recipe's. Raises
    ExportError, ModelError.
    """
    name, expected = base or recipe.name, None
    notes: tuple[str, ...] = ()
    if checkpoint.has_full_weights:
        model = _load(recipe, str(checkpoint.model), dtype=AUTO)
        chosen, notes = _dtype_of_full_weights(model, recipe, dtype)
        model.to(chosen)
    else:
        found = _find_base(recipe, base, revision)
        adapted = _with_adapter(_load_full_precision(recipe, found), checkpoint.model)
        if base is not None or (recipe.load_in_4bit and not found.prequantized):
            expected = measure_both(adapted, answers)
        if found.prequantized:
            notes = (
                f"{public_name(name)} has only quantised weights. They were dequantised, so the merged weights contain "
                "the rounding of the quantisation. Merge into a base in full precision (--base) to avoid it.",
            )
        chosen, why = dtype_that_holds(
            partial(adapter_changes, adapted),
            _written_dtype(dtype, adapted.get_base_model().dtype),
            named=dtype != AUTO,
        )
        model, notes = _merged(adapted, chosen), notes + why
    _set_generation(model, tokenizer, eos_token_ids)
    _save(model, folder)
    _save(tokenizer, folder)
    return Written(dtype_name(model.dtype), public_name(name), notes, expected)


def read_back(format: str, folder: Path, recipe: ModelRecipe, device: torch.device) -> Any:
    """Load the model in the folder with plain transformers (and PEFT), on `device` if it has room."""
    if format == "adapter":
        return _with_adapter(_load_trained_on(recipe, _find_base(recipe, None, None), device), folder)
    model = _read_gguf(folder) if format == "gguf" else _load(recipe, str(folder))
    try:
        return model.to(device)
    except torch.OutOfMemoryError:  # the CPU is slower but equivalent
        torch.cuda.empty_cache()
        return model.to("cpu")


def _read_gguf(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    (file,) = folder.glob("*.gguf")

    def wrong(why: str) -> ExportError:
        return ExportError(
            f"{file.name}: was converted, but transformers cannot load it, so it was not compared ({why}); use "
            "--format merged, and convert that without the check if you trust the converter"
        )

    with guarded(wrong), quiet(), contextlib.redirect_stderr(io.StringIO()):  # hides its progress bar
        return AutoModelForCausalLM.from_pretrained(str(folder), gguf_file=file.name)


def _find_base(recipe: ModelRecipe, name: str | None, revision: str | None) -> Base:
    """Find the base that the user named, or else the recipe's. Raises ModelError."""
    path = resolve_name(recipe.name if name is None else name)
    revision = recipe.revision if name is None else revision
    config = load_config(recipe.model_copy(update={"revision": revision}), path)
    return Base(path, revision, getattr(config, "quantization_config", None) is not None)


def _load(recipe: ModelRecipe, path: str, revision: str | None = None, **options: Any) -> Any:
    """Load a causal language model with transformers; `options` go to from_pretrained. Raises ModelError."""
    from transformers import AutoModelForCausalLM

    load_config(recipe.model_copy(update={"revision": revision}), path)  # refuses a model that cannot be built
    with explained(path):
        model, loading = AutoModelForCausalLM.from_pretrained(
            path, revision=revision, trust_remote_code=recipe.trust_remote_code, output_loading_info=True, **options
        )
    check_complete(path, model, loading)
    check_finite(path, model)
    return model


def _load_full_precision(recipe: ModelRecipe, base: Base) -> Any:
    """Load the base's weights on the CPU in their stored type; quantised ones are dequantised to float32."""
    if not base.prequantized:
        return _load(recipe, base.path, base.revision, dtype=AUTO)
    nf4_config(torch.float32)  # raises if bitsandbytes is missing
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
    """Whether saving can undo a conversion of loading. Quantising was already undone and cannot be undone again."""
    try:
        conversion.reverse_transform()
    except NotImplementedError:
        return False
    return True


def _load_trained_on(recipe: ModelRecipe, base: Base, device: torch.device) -> Any:
    """Load the base as in training, in 4 bits if the recipe says so."""
    dtype = choose_dtype(recipe.dtype, device)
    if not recipe.load_in_4bit:
        return _load(recipe, base.path, base.revision, dtype=dtype).to(device)
    options = {"quantization_config": nf4_config(dtype), "device_map": {"": device}}
    model = _load(recipe, base.path, base.revision, dtype=dtype, **options)
    keep_weights_differentiable(model)  # the same forward as the policy's
    return model


def _with_adapter(model: Any, folder: Path) -> Any:
    """Put the adapter in `folder` on the model without merging. Raises ExportError if it does not fit."""
    from peft import PeftModel

    check_adapter_config(folder)
    try:
        adapted = PeftModel.from_pretrained(model, str(folder))
        check_adapted(adapted)
        return adapted
    except GtpoError:
        raise
    except Exception as error:
        reason = describe(error)
        if isinstance(error, RuntimeError) and "size mismatch" not in reason:
            raise ExportError(f"{folder}: the adapter cannot be put on its base: {reason}") from error
        raise ExportError(
            f"{folder}: the adapter does not fit this base ({reason}); is --base the base that the run trained on?"
        ) from error


def _merged(model: Any, dtype: torch.dtype) -> Any:
    """Merge the adapter of a PeftModel into its base, and return the base in `dtype`. This consumes the PeftModel.

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


def _dtype_of_full_weights(model: Any, recipe: ModelRecipe, name: str) -> tuple[torch.dtype, tuple[str, ...]]:
    """Return the type for full weights, and notes. The original model shows the changes of training."""
    wanted = _written_dtype(name, model.dtype)
    if wanted == model.dtype:
        return wanted, ()
    try:
        found = _find_base(recipe, None, None)
        base = _load(recipe, found.path, found.revision, dtype=AUTO)
    except ModelError:  # the original model may be gone
        text = f"The model that training started from is missing, so the losses of {dtype_name(wanted)} are unknown."
        return wanted, (text,)
    return dtype_that_holds(partial(changes_of_all, model, base), wanted, named=name != AUTO)


def _written_dtype(name: str, stored: torch.dtype) -> torch.dtype:
    if name != AUTO:
        return DTYPES[name]
    return stored if stored in (torch.bfloat16, torch.float16) else torch.bfloat16


def _set_generation(model: Any, tokenizer: Any, eos_token_ids: Sequence[int]) -> None:
    """Set the stop and pad tokens of training and nothing else, such as the base's repetition penalty, which training
    did not have; and remove the local path of the model."""
    from transformers import GenerationConfig

    model.config._name_or_path = ""
    model.generation_config = GenerationConfig(
        bos_token_id=model.generation_config.bos_token_id,
        eos_token_id=list(eos_token_ids) if len(eos_token_ids) > 1 else eos_token_ids[0],
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos_token_ids[0],
    )


def _save(what: Any, folder: Path) -> None:
    """Save a model or tokenizer. Raises OSError if writing fails, whatever error the libraries raise."""
    try:
        with quiet():
            what.save_pretrained(folder)
    except (RuntimeError, SafetensorError, ValueError) as error:
        raise OSError(errno.EIO, one_line(str(error)) or type(error).__name__) from error


_HELD = 0.9  # smallest share of training's changes that must remain after rounding; the largest is 1/0.9

Changes = Callable[[], Iterator[tuple[Tensor, Tensor]]]  # per layer: weights before training, and their change


def adapter_changes(model: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield W and dW = alpha/rank B A of a PeftModel in float64, because float32 is too inexact here."""
    from peft.tuners.lora import LoraLayer

    for layer in (module for module in model.modules() if isinstance(module, LoraLayer)):
        change = sum(layer.get_delta_weight(name).double() for name in layer.active_adapters)
        yield layer.get_base_layer().weight.double(), change


def changes_of_all(model: Any, base: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same for a model with all weights trained."""
    before = dict(base.named_parameters())
    for name, weight in model.named_parameters():
        if name in before and before[name].shape == weight.shape:
            yield before[name].double(), weight.double() - before[name].double()


def dtype_that_holds(changes: Changes, wanted: torch.dtype, *, named: bool) -> tuple[torch.dtype, tuple[str, ...]]:
    """Return the type for trained weights, `wanted` or a finer one, with a note if it is finer or nothing was trained.

    Raises ExportError if the type that a user `named` does not hold the changes of training, or if no type does.
    """
    held = share_held(changes(), wanted)
    if held is None:
        return wanted, ("Training changed nothing: these are the weights of the base.",)
    if holds(held) or not math.isfinite(held):  # the check after loading finds weights beyond the type's range
        return wanted, ()
    lost = f"{dtype_name(wanted)} would hold {in_words(held)} training's changes of the weights"
    finer = next((t for t in (torch.float16, torch.float32) if t != wanted and holds(share_held(changes(), t))), None)
    if finer is None or wanted == torch.float32:
        raise ExportError(
            f"not exported: {lost}: in every type, the changes are smaller than half a step between its numbers; use "
            "--format adapter, which holds them, or train longer or at a higher optimizer.learning_rate"
        )
    if named:
        raise ExportError(
            f"--dtype: {lost}, because most changes are smaller than half a step between its numbers; use --dtype "
            "auto, which takes a finer type"
        )
    return finer, (f"The weights are {dtype_name(finer)}, because {lost}. Load them as {dtype_name(finer)} too.",)


def holds(share: float | None) -> bool:
    return share is not None and _HELD <= share <= 1 / _HELD


def in_words(share: float) -> str:
    """Describe a share. Rounding may also reverse or enlarge changes, for which a percentage makes no sense."""
    if share < 0.005:
        return "nothing of"
    return f"{100 * share:.0f} % of" if share <= 1.005 else f"{share:.2f} times"


@torch.no_grad()
def share_held(changes: Iterable[tuple[Tensor, Tensor]], dtype: torch.dtype) -> float | None:
    """Return how much of training's change dW is in the weights W + dW rounded to `dtype`:
    <dW, round(W + dW) - W> / <dW, dW> over all layers, so 1 is all of it. None if nothing changed."""
    kept = power = 0.0
    for weight, change in changes:
        kept += float((change * ((weight + change).to(dtype).double() - weight)).sum())
        power += float((change**2).sum())
    return kept / power if power else None
