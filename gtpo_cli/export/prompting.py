"""The run's prompt as a chat template, so that whoever serves the model need not know how it was prompted.

The exported tokenizer renders a lone user message to exactly the token ids that the policy was trained on: the run's
system prompt is in the template, and a tokenizer that had none gets the plain format of `gtpo_cli.data.prompts`. A
system message of the caller's own takes the place of the run's. A conversation that ends with the user's message is one
to answer, so `add_generation_prompt` need not be given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gtpo_cli.data import PromptEncoder
from gtpo_cli.data.prompts import TEMPLATE_DATE

_PLAIN = (
    "{{% if messages[0]['role'] == 'system' %}}{{% set system = messages[0]['content'] %}}"
    "{{% else %}}{{% set system = {system} %}}{{% endif %}}"
    "{{{{ {bos} }}}}{{% if system %}}{{{{ system + {blank} }}}}{{% endif %}}"
    "{{% for message in messages %}}"
    "{{% if message['role'] == 'user' %}}{{{{ 'Question: ' + message['content'] + {newline} + 'Answer:' }}}}"
    "{{% elif message['role'] == 'assistant' %}}{{{{ message['content'] + eos_token }}}}{{% endif %}}"
    "{{% endfor %}}"
)
_DATE = "{{% if date_string is not defined %}}{{% set date_string = {date} %}}{{% endif %}}"
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
    """The run's prompt as `text`, with QUESTION where the question goes. `has_template`: the exported tokenizer's chat
    template renders it; `plain`: the tokenizer itself puts special tokens in front, none are in the text."""

    text: str
    has_template: bool
    plain: bool


def put_template(tokenizer: Any, encoder: PromptEncoder, system_prompt: str | None, questions: Sequence[str]) -> bool:
    """Give the tokenizer the run's prompt as its chat template; false, and nothing is changed, where it cannot render
    these questions to the same token ids. Where there are several templates, it takes the place of the default one."""
    before = tokenizer.chat_template
    expected = [list(encoder.encode(question)) for question in questions]  # with the template as it was
    template = _template(tokenizer, encoder, (system_prompt or "").strip(), expected[0])
    if template is None:
        return False
    tokenizer.chat_template = before | {"default": template} if isinstance(before, dict) else template
    rendered = [_rendered(tokenizer, system_prompt, question) for question in questions]
    if rendered == [[ids] * 3 for ids in expected]:
        return True
    tokenizer.chat_template = before
    return False


def _rendered(tokenizer: Any, system_prompt: str | None, question: str) -> list[list[int]]:
    """The ids of a lone user message, with `add_generation_prompt` and without, and of gtpo's own prompt."""
    messages = [{"role": "user", "content": question}]
    lone = [tokenizer.apply_chat_template(messages, return_dict=True, add_generation_prompt=a) for a in (True, False)]
    return [*(list(ids["input_ids"]) for ids in lone), list(PromptEncoder(tokenizer, system_prompt).encode(question))]


def _template(tokenizer: Any, encoder: PromptEncoder, system: str, ids: Sequence[int]) -> str | None:
    if encoder.uses_plain_format:
        starts = tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id
        bos = "bos_token" if starts else "''"
        return _PLAIN.format(system=_quoted(system), bos=bos, blank=_quoted("\n\n"), newline=_quoted("\n"))
    before = tokenizer.chat_template
    if isinstance(before, dict):  # several by name
        before = before.get("default")
    if not isinstance(before, str):
        return None
    template = _ANSWERED + (_DATE.format(date=_quoted(TEMPLATE_DATE)) if "date_string" in before else "")
    if system and encoder.folds_system_prompt:
        template += _FOLDED.format(system=_quoted(system), blank=_quoted("\n\n"))
    elif system:
        template += _SYSTEM.format(system=_quoted(system))
    return template + before


def _quoted(text: str) -> str:
    """A Jinja string literal: JSON's escapes are Python's, as long as no character needs two of them."""
    return json.dumps(text, ensure_ascii=False)
