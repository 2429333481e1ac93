"""Renders a chat template once, in a process of its own with little time and memory: `renders` starts it.

A chat template is a program that came with a model. transformers runs it in Jinja's sandbox, which keeps it from the
machine, not from looping or filling the memory. Reads {"template": ..., "conversations": [...], "tokens": {...}} as
JSON; a template that ends, be it in an error of its own, is exit code 0: what it gives is for the caller to see.
"""

import json
import os
import resource
import subprocess
import sys
from functools import cache

SECONDS = 3  # of the processor; a template takes milliseconds
MEMORY_BYTES = 2**30
MAX_CHARACTERS = 2**22
_PATIENCE = 30.0  # seconds of the clock, on a machine that has other things to do


@cache
def renders(template: str, questions: tuple[str, ...], system: str, tokens: tuple[tuple[str, str], ...]) -> bool:
    """Whether a template renders each question, without and with a system message, within the limits."""
    plain = [[{"role": "user", "content": question}] for question in questions]
    with_system = [[{"role": "system", "content": system}, *messages] for messages in plain]
    asked = {"template": template, "tokens": dict(tokens), "conversations": plain + with_system}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__], input=json.dumps(asked), text=True, env=environment, capture_output=True,
            timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    """Exit code 0, or another, or killed by a limit."""
    for kind, limit in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(kind, (limit, limit))
        except (ValueError, OSError):  # macOS has no limit on address space
            continue
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    asked = json.load(sys.stdin)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = json.dumps
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = str
    for messages in asked["conversations"]:
        try:
            template = environment.from_string(asked["template"])
            text = template.render(messages=messages, add_generation_prompt=True, **asked["tokens"])
        except MemoryError:
            sys.exit(1)
        except Exception:  # noqa: BLE001 - the template's own: it may refuse a system message
            continue
        if len(text) > MAX_CHARACTERS:
            sys.exit(1)


def _refuse(message: str) -> None:
    raise ValueError(message)


if __name__ == "__main__":
    main()
