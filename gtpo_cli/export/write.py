"""Writes the formats, and reads them back as a user of them would."""

from __future__ import annotations

import contextlib
import errno
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from safetensors import SafetensorError

from gtpo_cli.errors import ExportError
from gtpo_cli.evaluation.subject import Checkpoint
from gtpo_cli.export.card import public_name
from gtpo_cli.export.check import Answer, Reference, measure_both
from gtpo_cli.export.merge import (
    Base,
    find_base,
    load_causal_lm,
    load_full_precision,
    load_trained_on,
    merged,
    own_weights,
    with_adapter,
    written_dtype,
)
from gtpo_cli.files import read_bytes, read_json, walled
from gtpo_cli.models.loading import quiet
from gtpo_cli.recipe import Recipe

_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILES = (_ADAPTER_CONFIG, "adapter_model.safetensors")


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: the weights' type, the base's public name, what it cost in sentences.

    `expected`: what the model should give to the answers, where that is not what the policy gave: it trained on a base
    in 4 bits, or on another.
    """

    dtype: str
    base_name: str
    notes: tuple[str, ...] = ()
    expected: Reference | None = None


def write_adapter(folder: Path, checkpoint: Checkpoint, recipe: Recipe, tokenizer: Any) -> Written:
    """The adapter's weights, byte for byte; its configuration names the base without a path of this machine."""

    def wrong(why: str) -> ExportError:
        return ExportError(f"{checkpoint.model}: the adapter cannot be read ({why}); choose another checkpoint")

    for name in _ADAPTER_FILES:
        with walled(wrong):
            (folder / name).write_bytes(read_bytes(checkpoint.model / name))
    config = read_json(folder / _ADAPTER_CONFIG, dict[str, JsonValue], wrong)
    config |= {"base_model_name_or_path": public_name(recipe.model.name), "revision": recipe.model.revision}
    (folder / _ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _save(tokenizer, folder)
    note = "It needs its base, loaded as in training" + (" (4 bits, NF4)." if recipe.model.load_in_4bit else ".")
    return Written("float32", public_name(recipe.model.name), (note,))


def write_merged(
    folder: Path,
    checkpoint: Checkpoint,
    recipe: Recipe,
    tokenizer: Any,
    *,
    dtype: str,
    base: str | None,
    revision: str | None,
    answers: Sequence[Answer],
    eos_token_ids: Sequence[int],
) -> Written:
    """The whole model as safetensors with configuration, generation settings and tokenizer.

    `dtype`: "auto" or a name; `base`, `revision`: other weights to merge into than the recipe's. Raises ExportError,
    ModelError.
    """
    expected: Reference | None = None
    notes: tuple[str, ...] = ()
    if checkpoint.has_full_weights:
        name, model = recipe.model.name, own_weights(recipe.model, checkpoint)
        model.to(written_dtype(dtype, model.dtype))
    else:
        found = find_base(recipe.model, base, revision)
        name = base or recipe.model.name
        adapted = with_adapter(load_full_precision(recipe.model, found), checkpoint.model)
        if base is not None or (recipe.model.load_in_4bit and not found.prequantized):
            expected = measure_both(adapted, answers)
        notes = _notes(found, name)
        model = merged(adapted, written_dtype(dtype, adapted.get_base_model().dtype))
    _settle(model, tokenizer, eos_token_ids)
    _save(model, folder)
    _save(tokenizer, folder)
    return Written(str(model.dtype).removeprefix("torch."), public_name(name), notes, expected)


def read_back(format: str, folder: Path, recipe: Recipe, device: torch.device) -> Any:
    """The model in the folder as plain transformers (and PEFT) load it, on `device` where it has room."""
    if format == "adapter":
        base = load_trained_on(recipe.model, find_base(recipe.model, None, None), device)
        return with_adapter(base, folder)
    if format == "gguf":
        return _place(_read_gguf(folder), device)
    return _place(load_causal_lm(recipe.model, str(folder)), device)


def _read_gguf(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    (file,) = folder.glob("*.gguf")

    def wrong(why: str) -> ExportError:
        return ExportError(
            f"{file.name}: was converted, but transformers cannot load it back, so it could not be compared ({why}); "
            "use --format merged, and convert that without the check if you trust the converter"
        )

    with walled(wrong), quiet(), contextlib.redirect_stderr(io.StringIO()):  # its own bar
        return AutoModelForCausalLM.from_pretrained(str(folder), gguf_file=file.name)


def _place(model: Any, device: torch.device) -> Any:
    try:
        return model.to(device)
    except torch.OutOfMemoryError:  # slower, and just as good
        torch.cuda.empty_cache()
        return model.to("cpu")


def _settle(model: Any, tokenizer: Any, eos_token_ids: Sequence[int]) -> None:
    """Let others stop and pad where training did, and forget where the model came from on this machine."""
    model.config._name_or_path = ""
    settings = model.generation_config
    settings.eos_token_id = list(eos_token_ids) if len(eos_token_ids) > 1 else eos_token_ids[0]
    settings.pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos_token_ids[0]
    if not settings.do_sample:  # transformers refuses to save what would have no effect
        settings.temperature = settings.top_p = settings.top_k = None


def _notes(base: Base, name: str) -> tuple[str, ...]:
    if not base.prequantized:
        return ()
    return (
        f"{public_name(name)} has only quantised weights: they were dequantised, so the rounding of the quantisation "
        "is in the merged weights. With the base in full precision (--base) it would not be.",
    )


def _save(what: Any, folder: Path) -> None:
    """Raises OSError where the disk refuses, whatever the libraries call that."""
    try:
        with quiet():
            what.save_pretrained(folder)
    except (RuntimeError, SafetensorError, ValueError) as error:
        raise OSError(errno.EIO, " ".join(str(error).split())[:300] or type(error).__name__) from error
