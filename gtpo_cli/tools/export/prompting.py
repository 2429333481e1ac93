"""Put the run's prompt into the chat template, so that users of the export need not know it.

The exported tokenizer renders a single user message to exactly the token ids of training. The template contains the
run's system prompt; a tokenizer without a template gets the plain format of `gtpo_cli.data.prompts`. A system message
of the caller replaces the run's. After a user message the template always adds the generation prompt, even without
`add_generation_prompt`.
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
    """The run's prompt as `text`, with QUESTION in place of the question. `has_template`: the exported tokenizer's chat
    template renders it. `plain`: the text has no special tokens; the tokenizer adds them."""

    text: str
    has_template: bool
    plain: bool


def put_template(tokenizer: Any, encoder: PromptEncoder, system_prompt: str | None, questions: Sequence[str]) -> bool:
    """Make the run's prompt the tokenizer's (default) chat template. If it does not render these questions to the same
    token ids, change nothing and return False."""
    before = tokenizer.chat_template
    expected = [list(encoder.encode(question)) for question in questions]  # with the old template
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
    """Return the ids of a single user message, with `add_generation_prompt` and without, and of gtpo's own prompt."""
    messages = [{"role": "user", "content": question}]
    single = [tokenizer.apply_chat_template(messages, return_dict=True, add_generation_prompt=a) for a in (True, False)]
    return [*(list(ids["input_ids"]) for ids in single), list(PromptEncoder(tokenizer, system_prompt).encode(question))]


def _template(tokenizer: Any, encoder: PromptEncoder, system: str, ids: Sequence[int]) -> str | None:
    if encoder.uses_plain_format:
        starts = tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id
        bos = "bos_token" if starts else "''"
        return _PLAIN.format(system=_quoted(system), bos=bos, blank=_quoted("\n\n"), newline=_quoted("\n"))
    before = tokenizer.chat_template
    if isinstance(before, dict):  # several templates by name
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
    """Return a Jinja string literal. JSON's escapes are Python's if no character needs a surrogate pair."""
    return json.dumps(text, ensure_ascii=False)
