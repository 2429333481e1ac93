"""What an adapter's folder says of it: is it one that gtpo can train further, and on which base."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from gtpo_cli.errors import ModelError
from gtpo_cli.files import read_json
from gtpo_cli.text import one_line


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What is read here of adapter_config.json. With `megatron_config` PEFT imports the module that `megatron_core`
    names, which would be code that the file's author chose."""

    base_model_name_or_path: str | None = None
    peft_type: str = "LORA"
    megatron_config: JsonValue = None
    r: int = 8
    lora_alpha: float = 8
    target_modules: JsonValue = None
    bias: JsonValue = "none"
    init_lora_weights: JsonValue = True
    use_rslora: JsonValue = False
    use_dora: JsonValue = False
    lora_bias: JsonValue = False
    rank_pattern: JsonValue = None
    alpha_pattern: JsonValue = None
    modules_to_save: JsonValue = None
    layers_to_transform: JsonValue = None
    target_parameters: JsonValue = None
    trainable_token_indices: JsonValue = None

    def beyond_a_recipe(self) -> str | None:
        """The first setting that `model.lora` has no word for; None where it says all of this adapter."""
        modules = self.target_modules
        leaves = isinstance(modules, list) and all(isinstance(name, str) and "." not in name for name in modules)
        strange = [] if leaves and modules else ["target_modules"]
        strange += ["bias"] if self.bias != "none" else []
        # by name: one that changed the base's weights (PiSSA, OLoRA, LoftQ)
        strange += ["init_lora_weights"] if self.init_lora_weights not in (True, False, None, "gaussian") else []
        strange += [
            name
            for name in ("use_rslora", "use_dora", "lora_bias", "rank_pattern", "alpha_pattern", "modules_to_save",
                         "layers_to_transform", "target_parameters", "trainable_token_indices")
            if getattr(self, name)
        ]  # fmt: skip
        return f"{strange[0]}: {one_line(str(getattr(self, strange[0])))}" if strange else None


def check_adapter_config(folder: Path) -> AdapterConfig:
    """Raise ModelError for an adapter that is none of ours: no LoRA, or one that has PEFT import a module."""
    file = folder / "adapter_config.json"
    config = read_json(file, AdapterConfig, lambda why: ModelError(f"{file}: cannot be read ({why}); get it again"))
    if config.peft_type != "LORA" or config.megatron_config is not None:
        raise ModelError(f"{file}: is no plain LoRA adapter, as gtpo trains them; choose another checkpoint")
    return config


def base_of_adapter(folder: Path) -> str:
    """The base, in brackets, for a message; "" where the file does not say."""
    try:
        base = read_json(folder / "adapter_config.json", AdapterConfig, ModelError).base_model_name_or_path
    except ModelError:  # the message does without it
        return ""
    return f" ({one_line(base)})" if base else ""
