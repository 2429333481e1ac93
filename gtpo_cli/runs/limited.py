"""Try what comes with a model in a separate process with little time and memory, before it runs here.

A chat template is a program, and the rules of a tokenizer.json can be one: a file of a few kilobytes can hold forty
rules that each double the text. Neither reaches outside, but both can run for ever or fill the memory. transformers
runs a template in Jinja's sandbox, which protects the machine only. `renders` and `tokenizes` start this file with a
request, as JSON, on its standard input. Its exit code is 0 if all ends, even with an error, which the caller will see.
"""

from __future__ import annotations

import json
import math
import os
import resource
import string
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

SECONDS = 3  # of CPU time; a template or a tokenizer takes milliseconds
MEMORY_BYTES = 2**30
LIMITS = f"{SECONDS} s and {MEMORY_BYTES // 2**20} MiB"
MAX_CHARACTERS = 2**22  # of a rendered conversation
_PATIENCE = 30.0  # seconds of wall time, for a busy machine
_TEXT = string.printable + "Ärger naïve 東京 😀 \ufdfa <|im_start|> ▁Ġ"
_MOST = 100  # times as long as the text; the longest expansion of Unicode is 18


@cache
def renders(template: str, questions: tuple[str, ...], system: str, tokens: tuple[tuple[str, str], ...]) -> bool:
    """Whether a template renders each question, without and with a system message, within the limits."""
    plain = [[{"role": "user", "content": question}] for question in questions]
    with_system = [[{"role": "system", "content": system}, *messages] for messages in plain]
    return _ends({"template": template, "tokens": dict(tokens), "conversations": plain + with_system})


@cache
def tokenizes(file: Path, _changed: float) -> bool:
    """Whether the rules of a file turn a text into tokens and back within the limits. `_changed`: when it was."""
    return _ends({"file": str(file)})


def _ends(request: Mapping[str, Any]) -> bool:
    """Return whether this file, as a program, ends with exit code 0 within the limits."""
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
    """Try what the request names. Exits with 0 on success; otherwise exits with 1 or is killed by a limit."""
    request = json.load(sys.stdin)
    try:
        ends = _try_rules(request["file"]) if "file" in request else _try_template(request)
    except MemoryError:
        ends = False
    sys.exit(0 if ends else 1)


def _set_limits() -> None:
    """Limit what this process takes from now on."""
    pages = Path("/proc/self/statm")
    taken = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0
    seconds = math.ceil(time.process_time()) + SECONDS
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, taken + MEMORY_BYTES)):
        with suppress(ValueError, OSError):  # macOS has no limit on address space
            resource.setrlimit(kind, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _try_template(request: Mapping[str, Any]) -> bool:
    """Render all conversations; return whether each text is short enough."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    _set_limits()
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = json.dumps
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = str
    for messages in request["conversations"]:
        try:
            template = environment.from_string(request["template"])
            text = template.render(messages=messages, add_generation_prompt=True, **request["tokens"])
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - the template may refuse a system message
            continue
        if len(text) > MAX_CHARACTERS:
            return False
    return True


def _refuse(message: str) -> None:
    raise ValueError(message)


def _try_rules(file: str) -> bool:
    """Normalise, split and decode a text; return whether it never grows too long."""
    from tokenizers import Tokenizer

    try:
        written = json.loads(Path(file).read_bytes())
    except (ValueError, RecursionError):  # loading it reports that
        return True
    _set_limits()
    kept = {name: written.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    absent: dict[str, object] = {"truncation": None, "padding": None, "added_tokens": [], "post_processor": None}
    try:
        rules = Tokenizer.from_str(json.dumps({"version": "1.0", **absent, **kept, "model": model}))
    except Exception:  # noqa: BLE001 - as above
        return True
    added = " ".join(token["content"] for token in written.get("added_tokens") or ())
    for text in (_TEXT, *_TEXT, added):
        try:
            longest = _longest(rules, text)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - a decoder may refuse such pieces
            continue
        if longest > _MOST * (len(text) + 1):
            return False
    return True


def _longest(rules: Any, text: str) -> int:
    """Return the characters of the longest text on the way to tokens and back."""
    normal = text if rules.normalizer is None else rules.normalizer.normalize_str(text)
    pieces = [normal]
    if rules.pre_tokenizer is not None:
        pieces = [piece for piece, _ in rules.pre_tokenizer.pre_tokenize_str(normal)]
    decoded = "" if rules.decoder is None else rules.decoder.decode(pieces)
    return max(len(normal), sum(map(len, pieces)), len(decoded))


if __name__ == "__main__":
    main()
