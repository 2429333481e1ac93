"""Which adapters gtpo computes exactly: plain LoRA on layers inside the decoder. Every other is refused here, for
whoever trains, samples from, evaluates or exports one.

Log-probabilities come from the decoder's hidden states and the output layer's own weights, without logits, and the
samplers read weights too: an adapter on the output layer or the embedding would be left out without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from gtpo_cli.errors import ModelError
from gtpo_cli.files import read_json
from gtpo_cli.text import one_line

# Settings of an adapter that change nothing of what it computes, or only with another one that is refused. PEFT sets
# `fan_in_fan_out` by the kind of layer; dropout is of training alone.
_NO_MATTER = frozenset(
    {
        "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
        "lora_dropout", "fan_in_fan_out", "megatron_core", "qalora_group_size",
    }
)  # fmt: skip
# What `model.lora` says, and the kind.
_SAID = frozenset({"peft_type", "r", "lora_alpha", "target_modules"})
_BEYOND = "more than plain LoRA, which is all that gtpo computes exactly"
_MERGE = "merge it into its base with PEFT (merge_and_unload) and name the result as model.name"


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What is read of a plain LoRA adapter's adapter_config.json."""

    r: int
    lora_alpha: float
    target_modules: tuple[str, ...]  # sorted
    base_model_name_or_path: str | None = None


def beyond_a_recipe(settings: Mapping[str, Any]) -> str | None:
    """The first setting of a LoRA adapter that `model.lora` has no word for; None where it says all of the adapter.

    A setting that is not known here counts as one wherever it is switched on.
    """
    modules = settings.get("target_modules")
    leaves = isinstance(modules, (list, tuple, set)) and all(isinstance(m, str) and "." not in m for m in modules)
    strange = [] if leaves and modules else ["target_modules"]
    for name, value in settings.items():
        if name == "init_lora_weights":  # by name: one that changed the base's weights (PiSSA, OLoRA, LoftQ)
            plain = value in (True, False, None, "gaussian")
        else:
            plain = name in _NO_MATTER | _SAID or not value or (name, value) == ("bias", "none")
        strange += [] if plain else [name]
    return f"{strange[0]}: {one_line(str(settings.get(strange[0])))}" if strange else None


def check_adapter_config(folder: Path) -> AdapterConfig:
    """What the adapter in a folder is. Raises ModelError for one that is not plain LoRA as `model.lora` has it. PEFT is
    not asked: with `megatron_config` it would import a module that the file's author chose."""
    file = folder / "adapter_config.json"

    def wrong(why: str) -> ModelError:
        return ModelError(f"{file}: cannot be read ({why}); get it again")

    settings = read_json(file, dict[str, JsonValue], wrong)
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA" or settings.get("megatron_config") is not None:
        raise ModelError(
            f"{file}: is no plain LoRA adapter (peft_type {one_line(str(kind))}), as gtpo trains them; choose another "
            "checkpoint"
        )
    if strange := beyond_a_recipe(settings):
        raise ModelError(f"{file}: {strange} is {_BEYOND}; {_MERGE}")
    r, alpha, modules = settings.get("r", 8), settings.get("lora_alpha", 8), settings["target_modules"]
    base = settings.get("base_model_name_or_path")
    if type(r) is not int or type(alpha) not in (int, float) or not isinstance(base, str | None):
        raise wrong("r, lora_alpha or base_model_name_or_path is of another type")
    assert isinstance(modules, list)
    return AdapterConfig(r, float(alpha), tuple(sorted(map(str, modules))), base)  # type: ignore[arg-type]


def check_adapted(model: Any) -> None:
    """Raise ModelError for a PeftModel that is not plain LoRA on layers between the embedding and the output layer."""
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
                f"model.lora.target_modules: {name.rpartition('.')[2]} is {which}, and gtpo would compute and sample "
                f"without an adapter there: leave it out; if the adapter is trained already, {_MERGE}"
            )


def base_of_adapter(folder: Path) -> str:
    """The base, in brackets, for a message; "" where the file does not say."""
    try:
        settings = read_json(folder / "adapter_config.json", dict[str, JsonValue], ModelError)
    except ModelError:  # the message does without it
        return ""
    base = settings.get("base_model_name_or_path")
    return f" ({one_line(base)})" if isinstance(base, str) and base else ""
