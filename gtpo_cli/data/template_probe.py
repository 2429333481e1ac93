"""Render a chat template once in a process with limits (`gtpo_cli.runs.limited`). `renders` starts this file.

transformers runs a template in Jinja's sandbox, which protects the machine, but not against endless loops or full
memory. The request is {"template": ..., "conversations": [...], "tokens": {...}}.
"""

import json
import sys
from functools import cache

from gtpo_cli.runs.limited import ends, set_limits

MAX_CHARACTERS = 2**22


@cache
def renders(template: str, questions: tuple[str, ...], system: str, tokens: tuple[tuple[str, str], ...]) -> bool:
    """Whether a template renders each question, without and with a system message, within the limits."""
    plain = [[{"role": "user", "content": question}] for question in questions]
    with_system = [[{"role": "system", "content": system}, *messages] for messages in plain]
    return ends(__file__, {"template": template, "tokens": dict(tokens), "conversations": plain + with_system})


def main() -> None:
    """Render all conversations. Exits with 0 on success; otherwise exits with 1 or is killed by a limit."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    request = json.load(sys.stdin)
    set_limits()
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = json.dumps
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = str
    for messages in request["conversations"]:
        try:
            template = environment.from_string(request["template"])
            text = template.render(messages=messages, add_generation_prompt=True, **request["tokens"])
        except MemoryError:
            sys.exit(1)
        except Exception:  # noqa: BLE001 - the template may refuse a system message
            continue
        if len(text) > MAX_CHARACTERS:
            sys.exit(1)


def _refuse(message: str) -> None:
    raise ValueError(message)


if __name__ == "__main__":
    main()
