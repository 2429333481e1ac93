"""The adapters that gtpo supports exactly: plain LoRA on layers inside the decoder. All others are refused here, in
training, sampling, evaluation and export.

Log-probabilities are computed without logits, from the decoder's hidden states and the output layer's own weights. The
samplers read weights too. So an adapter on the output layer or the embedding would be silently ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from gtpo_cli.errors import ModelError
from gtpo_cli.runs.files import read_json
from gtpo_cli.text import one_line

# Settings that do not change an adapter's function, or only together with another one that is refused. PEFT sets
# `fan_in_fan_out` by the kind of layer; dropout matters only in training.
_NO_MATTER = frozenset(
    {
        "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
        "lora_dropout", "fan_in_fan_out", "megatron_core", "qalora_group_size",
    }
)  # fmt: skip
# The settings of `model.lora`, and the kind of adapter.
_SAID = frozenset({"peft_type", "r", "lora_alpha", "target_modules"})
_FILE = "adapter_config.json"
_ALL_BUT_A_PART = re.compile(r"\(\?!.+\)\.\*")  # what `all_but` returns
_BEYOND = "more than plain LoRA, which is all that gtpo computes exactly"
_MERGE = "merge it into its base with PEFT (merge_and_unload) and name the result as model.name"


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The settings of a plain LoRA adapter from its adapter_config.json."""

    r: int
    lora_alpha: float
    target_modules: tuple[str, ...]  # sorted
    base_model_name_or_path: str | None = None
    revision: str | None = None  # of the base


def beyond_a_recipe(settings: Mapping[str, Any]) -> str | None:
    """Return the first setting of a LoRA adapter that `model.lora` cannot express; None if there is none.

    An unknown setting counts if it is switched on.
    """
    modules = settings.get("target_modules")
    leaves = isinstance(modules, (list, tuple, set)) and all(isinstance(m, str) and "." not in m for m in modules)
    strange = [] if leaves and modules else ["target_modules"]
    for name, value in settings.items():
        if name == "init_lora_weights":  # a name means that it changed the base's weights (PiSSA, OLoRA, LoftQ)
            plain = value in (True, False, None, "gaussian")
        elif name == "exclude_modules" and isinstance(value, str):
            plain = _ALL_BUT_A_PART.fullmatch(value) is not None
        else:
            plain = name in _NO_MATTER | _SAID or not value or (name, value) == ("bias", "none")
        strange += [] if plain else [name]
    return f"{strange[0]}: {one_line(str(settings.get(strange[0])))}" if strange else None


def all_but(part: str) -> str:
    """Return the pattern of the modules that are not in a part of the model."""
    return rf"(?!{re.escape(part)}\.).*"


def check_adapter_config(folder: Path) -> AdapterConfig:
    """Read the settings of the adapter in a folder. Raises ModelError unless it is plain LoRA as in `model.lora`.

    This does not use PEFT, which with `megatron_config` would import a module that the file's author chose.
    """
    file = folder / _FILE

    def wrong(why: str) -> ModelError:
        return ModelError(f"{file}: cannot be read ({why}); get it again")

    settings = read_json(file, dict[str, JsonValue], wrong)
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA" or settings.get("megatron_config") is not None:
        raise ModelError(
            f"{file}: is not a plain LoRA adapter (peft_type {one_line(str(kind))}), which is all that gtpo trains; "
            "choose another checkpoint"
        )
    if strange := beyond_a_recipe(settings):
        raise ModelError(f"{file}: {strange} is {_BEYOND}; {_MERGE}")
    r, alpha, modules = settings.get("r", 8), settings.get("lora_alpha", 8), settings["target_modules"]
    base, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    if type(r) is not int or type(alpha) not in (int, float):
        raise wrong("r or lora_alpha is no number")
    if not isinstance(base, str | None) or not isinstance(revision, str | None):
        raise wrong("base_model_name_or_path or revision is no text")
    assert isinstance(modules, list)
    return AdapterConfig(r, float(alpha), tuple(sorted(map(str, modules))), base, revision)  # type: ignore[arg-type]


def check_adapted(model: Any) -> None:
    """Raise ModelError unless a PeftModel is plain LoRA on layers between the embedding and the output layer."""
    for config in model.peft_config.values():
        kind = config.peft_type.value
        strange = beyond_a_recipe(config.to_dict()) if kind == "LORA" else f"peft_type: {kind}"
        if strange is not None:
            raise ModelError(f"model.lora: {strange} is {_BEYOND}; {_MERGE}")
    base = model.get_base_model()
    ends = {"the embedding": base.get_input_embeddings(), "the output layer": base.get_output_embeddings()}
    for name, module in base.named_modules():
        if not hasattr(module, "lora_A") or not hasattr(module, "get_base_layer"):
            continue
        which = next((words for words, end in ends.items() if module is end), None)
        if which is None and type(module).__name__ == "Embedding":
            which = "an embedding"
        if which is not None:
            raise ModelError(
                f"model.lora.target_modules: {name.rpartition('.')[2]} is {which}, where gtpo would ignore an adapter; "
                f"leave it out; if the adapter is trained already, {_MERGE}"
            )


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter alone, without a model."""
    return (folder / _FILE).is_file() and not os.path.lexists(folder / "config.json")


def base_of_adapter(folder: Path) -> str:
    """Return the base model in brackets for a message; "" if the file does not name it."""
    try:
        settings = read_json(folder / _FILE, dict[str, JsonValue], ModelError)
    except ModelError:  # the message works without it
        return ""
    base = settings.get("base_model_name_or_path")
    return f" ({one_line(base)})" if isinstance(base, str) and base else ""
