"""How others use an export: lines that load and serve it, and a chat template that holds the run's prompt.

The lines, for the card and the terminal, work when copied.

On the machine that wrote the export, they use absolute paths for its folder and a local base. An export for the hub
contains no path of this machine, so the reader has to fill in a local base.

The exported tokenizer renders a single user message to exactly the token ids of training. The template contains the
run's system prompt; a tokenizer without a template gets the plain format of `gtpo_cli.data.prompts`. A system message
of the caller replaces the run's. After a user message the template always adds the generation prompt, even without
`add_generation_prompt`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gtpo_cli.data import PromptEncoder
from gtpo_cli.data.prompts import TEMPLATE_DATE, TEMPLATE_DAY
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
        revision = self.model.revision  # which vLLM would take for that of the tokenizer too
        pinned = f"--revision {shlex.quote(revision)} --tokenizer-revision main " if revision else ""
        return (  # the tokenizer has the run's prompt, and training had none of the base's sampling settings
            f"vllm serve {shlex.quote(self.base)} {pinned}--tokenizer {shlex.quote(self.place)} --generation-config "
            f"vllm --enable-lora --max-lora-rank {most} --lora-modules {shlex.quote(f'policy={self.place}')}"
        )


def literal(text: str) -> str:
    """Return a Python string in double quotes; unprintable characters need single quotes and escapes."""
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else ascii(text)


_PLAIN = (
    "{{% if messages[0]['role'] == 'system' %}}{{% set system = messages[0]['content'] %}}"
    "{{% else %}}{{% set system = {system} %}}{{% endif %}}"
    "{{{{ {bos} }}}}{{% if system %}}{{{{ system + {blank} }}}}{{% endif %}}"
    "{{% for message in messages %}}"
    "{{% if message['role'] == 'user' %}}{{{{ 'Question: ' + message['content'] + {newline} + 'Answer:' }}}}"
    "{{% elif message['role'] == 'assistant' %}}{{{{ message['content'] + eos_token }}}}{{% endif %}}"
    "{{% endfor %}}"
)
_DEFAULT = "{{% if {name} is not defined %}}{{% set {name} = {value} %}}{{% endif %}}"
_CLOCK = re.compile(r"""strftime_now\(\s*(['"])([^'"\\]*)\1\s*\)""")
_ANSWERED = "{% if messages[-1]['role'] == 'user' %}{% set add_generation_prompt = true %}{% endif %}"
_SYSTEM = (
    "{{% if messages[0]['role'] != 'system' %}}"
    "{{% set messages = [{{'role': 'system', 'content': {system}}}] + messages %}}{{% endif %}}"
)
_FOLDED = (
    "{{% if messages[0]['role'] == 'system' %}}"
    "{{% set folded_prompt = messages[0]['content'] + {blank} %}}{{% set messages = messages[1:] %}}"
    "{{% else %}}{{% set folded_prompt = {system} + {blank} %}}{{% endif %}}"
    "{{% if messages and messages[0]['role'] == 'user' %}}"
    "{{% set messages = [{{'role': 'user', 'content': folded_prompt + messages[0]['content']}}] + messages[1:] %}}"
    "{{% endif %}}"
)


@dataclass(frozen=True, slots=True)
class Prompting:
    """The run's prompt as `text`, with QUESTION in place of the question. `has_template`: the exported tokenizer's chat
    template renders it. `plain`: the text has no special tokens; the tokenizer adds them. `opened`: the tags that end
    it. `special_tags`: tags are special tokens."""

    text: str
    has_template: bool
    plain: bool
    opened: str = ""
    special_tags: bool = False


def put_template(encoder: PromptEncoder, system_prompt: str | None, questions: Sequence[str]) -> bool:
    """Make the run's prompt the tokenizer's (default) chat template. If it does not render these questions to the same
    token ids, change nothing and return False."""
    tokenizer = encoder.tokenizer
    before = tokenizer.chat_template
    expected = [list(encoder.encode(question)) for question in questions]  # with the old template
    template = _template(encoder, (system_prompt or "").strip(), expected[0])
    if template is None:
        return False
    tokenizer.chat_template = before | {"default": template} if isinstance(before, dict) else template
    gtpos = PromptEncoder(tokenizer, system_prompt, arguments=encoder.arguments)
    rendered = [[*_rendered(tokenizer, question), list(gtpos.encode(question))] for question in questions]
    if rendered == [[ids] * 3 for ids in expected]:
        return True
    tokenizer.chat_template = before
    return False


def _rendered(tokenizer: Any, question: str) -> list[list[int]]:
    """Return the ids of a single user message, with `add_generation_prompt` and without."""
    messages = [{"role": "user", "content": question}]
    single = [tokenizer.apply_chat_template(messages, return_dict=True, add_generation_prompt=a) for a in (True, False)]
    return [list(ids["input_ids"]) for ids in single]


def _template(encoder: PromptEncoder, system: str, ids: Sequence[int]) -> str | None:
    if encoder.uses_plain_format:
        tokenizer = encoder.tokenizer
        starts = tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id
        bos = "bos_token" if starts else "''"
        return _PLAIN.format(system=_quoted(system), bos=bos, blank=_quoted("\n\n"), newline=_quoted("\n"))
    if not (before := encoder.template):
        return None
    values = ({"date_string": TEMPLATE_DATE} if "date_string" in before else {}) | encoder.arguments
    template = _ANSWERED + "".join(_DEFAULT.format(name=name, value=_literal(value)) for name, value in values.items())
    before = _CLOCK.sub(lambda call: _quoted(TEMPLATE_DAY.strftime(call[2])), before)
    if system and encoder.folds_system_prompt:
        template += _FOLDED.format(system=_quoted(system), blank=_quoted("\n\n"))
    elif system:
        template += _SYSTEM.format(system=_quoted(system))
    return template + before


def _literal(value: Any) -> str:
    """Return a Jinja literal of a JSON value."""
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """Return a Jinja string literal. JSON's escapes are Python's if no character needs a surrogate pair."""
    return json.dumps(text, ensure_ascii=False)
