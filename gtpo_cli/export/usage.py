"""How an exported model is asked and served: the text for its card."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gtpo_cli.recipe import Recipe
from gtpo_cli.text import printable

_ASK = """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
{more_imports}
{load}
tokenizer = AutoTokenizer.from_pretrained("{name}")
{prompt}
with torch.no_grad():
    tokens = model.generate(**inputs, max_new_tokens={max_tokens}, do_sample=False)
print(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
"""
_LOAD = 'model = AutoModelForCausalLM.from_pretrained("{name}").eval()'
_LOAD_ADAPTER = """\
base = AutoModelForCausalLM.from_pretrained("BASE")  # the base model named above
model = PeftModel.from_pretrained(base, "{name}").eval()"""
_TEMPLATE = """\
messages = [{"role": "user", "content": "QUESTION"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")"""
_TEXT = 'inputs = tokenizer(PROMPT, return_tensors="pt"{special})  # PROMPT: the text above'
_SERVE = {
    "merged": "vllm serve {name}",
    "adapter": "vllm serve BASE --enable-lora --lora-modules policy={name} --max-lora-rank {rank}",
    "gguf": "llama-server --model {file}",
}
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM takes for --max-lora-rank


@dataclass(frozen=True, slots=True)
class Prompting:
    """The run's prompt as `text`, with QUESTION where the question goes. `has_template`: the exported tokenizer's chat
    template renders it; `plain`: the tokenizer itself puts special tokens in front, none are in the text."""

    text: str
    has_template: bool
    plain: bool


def how_to_ask(format: str, hub_name: str | None, prompting: Prompting, recipe: Recipe) -> str:
    """Markdown: the prompt's text, Python with transformers, a server."""
    parts = [f"The prompt it was trained on, with the question in the place of QUESTION:\n\n{fenced(prompting.text)}"]
    if prompting.has_template:
        parts.append(
            "The tokenizer's chat template renders it from a lone user message; a system message replaces the run's."
        )
    else:
        parts.append("The tokenizer's chat template does not render it: give the text.")
    name = hub_name or "FOLDER"
    if format != "gguf":
        parts.append(fenced(_python(format, name, prompting, recipe), "python"))
    serve = _SERVE[format].format(name=name, rank=_rank(recipe), file="FILE.gguf")
    parts.append(f"As a server (ask it at temperature 0 for greedy answers):\n\n{fenced(serve)}")
    return "\n\n".join(parts)


def fenced(text: str, language: str = "") -> str:
    """A code block that the text itself cannot end."""
    text = printable(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _python(format: str, name: str, prompting: Prompting, recipe: Recipe) -> str:
    adapter = format == "adapter"
    text = _TEXT.format(special="" if prompting.plain else ", add_special_tokens=False")
    filled = _ASK.format(
        more_imports="from peft import PeftModel\n" if adapter else "",
        load=(_LOAD_ADAPTER if adapter else _LOAD).format(name=name),
        name=name,
        prompt=_TEMPLATE if prompting.has_template else text,
        max_tokens=recipe.evaluation.max_completion_tokens,
    )
    return re.sub(r"\n{2,}", "\n\n", filled)


def _rank(recipe: Recipe) -> int:
    wanted = recipe.model.lora.rank if recipe.model.lora is not None else 1
    return min((rank for rank in _RANKS if rank >= wanted), default=wanted)
