"""Write lines that load and serve an export, for its card and the terminal. They work when copied.

On the machine that wrote the export, they use absolute paths for its folder and a local base. An export for the hub
contains no path of this machine, so the reader has to fill in a local base.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from gtpo_cli.policy.tiny import BUILTIN_PREFIX, resolve_name
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.tools.export.folder import Exported
from gtpo_cli.tools.export.gguf import file_name

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_UNNAMED = "BASE"  # stands for a base that only the reader can name
_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values of --max-lora-rank


def public_name(name: str) -> str:
    """Return a name for a model or file that may be published: a hub id or built-in model, or a path's last part."""
    if name.startswith(BUILTIN_PREFIX) or (HUB_ID.fullmatch(name) and not Path(name).exists()):
        return name
    return Path(name).name or "."


def place_of(name: str) -> str:
    """Return a location of `model.name` for transformers that does not depend on the working folder: an absolute path
    for a local or built-in model, or else a hub id."""
    path = resolve_name(name)
    return str(Path(path).resolve()) if Path(path).is_dir() else path


@dataclass(frozen=True, slots=True)
class Use:
    """How to use an export. `place`: its folder or its name on the hub. `base`: the model under an adapter, as
    transformers finds it."""

    exported: Exported
    model: ModelRecipe
    place: str
    base: str

    @classmethod
    def here(cls, exported: Exported, model: ModelRecipe, folder: Path) -> Use:
        """Use it on the machine that wrote it."""
        return cls(exported, model, str(folder.resolve()), place_of(model.name))

    @classmethod
    def on_hub(cls, exported: Exported, model: ModelRecipe, name: str) -> Use:
        """Use it on any machine."""
        on_hub = HUB_ID.fullmatch(model.name) and public_name(model.name) == model.name
        return cls(exported, model, name, model.name if on_hub else _UNNAMED)

    def loading(self) -> str:
        """Return Python code that loads `model` and `tokenizer` of an adapter or a merged model."""
        place = literal(self.place)
        lines = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f"model = AutoModelForCausalLM.from_pretrained({place}).eval()",
            f"tokenizer = AutoTokenizer.from_pretrained({place})",
        ]
        if self.exported.format == "adapter":
            lines[2:3] = [*self._base(), f"model = PeftModel.from_pretrained(base, {place}).eval()"]
            lines[:1] = [
                "from peft import PeftModel",
                lines[0] + (", BitsAndBytesConfig" if self.model.load_in_4bit else ""),
            ]
        return "\n".join(lines)

    def _base(self) -> list[str]:
        """Return the lines that load the base as in training."""
        options, lines = [literal(self.base)], []
        if self.base == _UNNAMED:
            lines.append(f"# BASE: your copy of {public_name(self.model.name)}")
        if self.model.revision:
            options.append(f"revision={literal(self.model.revision)}")
        if self.model.load_in_4bit:
            kind = "bfloat16" if self.model.dtype == "auto" else self.model.dtype
            nf4 = f'bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype="{kind}"'
            lines.append(f"bits = BitsAndBytesConfig(load_in_4bit=True, {nf4})")
            options.append("quantization_config=bits")
        return [*lines, f"base = AutoModelForCausalLM.from_pretrained({', '.join(options)})"]

    def serving(self) -> str:
        """Return the shell command that serves it."""
        if self.exported.format == "gguf":
            file = file_name(self.exported.run, self.exported.dtype)
            folder = Path(self.place)
            return f"llama-server --model {shlex.quote(str(folder / file if folder.is_absolute() else file))}"
        if self.exported.format == "merged":
            return f"vllm serve {shlex.quote(self.place)}" + " --dtype float32" * (self.exported.dtype == "float32")
        rank = self.model.lora.rank if self.model.lora else 1
        most = min((known for known in _VLLM_RANKS if known >= rank), default=rank)
        return (
            f"vllm serve {shlex.quote(self.base)} --enable-lora --lora-modules {shlex.quote(f'policy={self.place}')} "
            f"--max-lora-rank {most}"
        )


def literal(text: str) -> str:
    """Return a Python string in double quotes; unprintable characters need single quotes and escapes."""
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else ascii(text)
