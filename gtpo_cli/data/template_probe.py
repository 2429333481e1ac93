"""Render a chat template once in a separate process with little time and memory. `renders` starts this file.

A chat template is a program that comes with a model. transformers runs it in Jinja's sandbox, which protects the
machine, but not against endless loops or full memory. The process reads {"template": ..., "conversations": [...],
"tokens": {...}} as JSON. Its exit code is 0 if the template ends, even with an error, which the caller will see.
"""

import json
import os
import resource
import subprocess
import sys
from functools import cache

SECONDS = 3  # of CPU time; a template takes milliseconds
MEMORY_BYTES = 2**30
MAX_CHARACTERS = 2**22
_PATIENCE = 30.0  # seconds of wall time, for a busy machine


@cache
def renders(template: str, questions: tuple[str, ...], system: str, tokens: tuple[tuple[str, str], ...]) -> bool:
    """Whether a template renders each question, without and with a system message, within the limits."""
    plain = [[{"role": "user", "content": question}] for question in questions]
    with_system = [[{"role": "system", "content": system}, *messages] for messages in plain]
    request = {"template": template, "tokens": dict(tokens), "conversations": plain + with_system}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__], input=json.dumps(request), text=True, env=environment,
            capture_output=True, timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    """Render all conversations. Exits with 0 on success; otherwise exits with 1 or is killed by a limit."""
    for kind, limit in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(kind, (limit, limit))
        except (ValueError, OSError):  # macOS has no limit on address space
            continue
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    request = json.load(sys.stdin)
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
