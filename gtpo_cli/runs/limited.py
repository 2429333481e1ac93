"""Try what comes with a model in a separate process with little time and memory, before it runs here.

A chat template is a program, and the rules of a tokenizer can be one. Neither reaches outside, but both can run for
ever or fill the memory. `ends` starts a script that reads its request, as JSON, from standard input and then
calls `set_limits`. The script's exit code is 0 if all ends, even with an error, which the caller will see.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS = 3  # of CPU time; a template or a tokenizer takes milliseconds
MEMORY_BYTES = 2**30
LIMITS = f"{SECONDS} s and {MEMORY_BYTES // 2**20} MiB"
_PATIENCE = 30.0  # seconds of wall time, for a busy machine


def ends(script: str, request: Mapping[str, Any]) -> bool:
    """Return whether a script ends with exit code 0 within the limits."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-P", script], input=json.dumps(request), text=True, env=environment,
            capture_output=True, timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def set_limits() -> None:
    """Limit what this process takes from now on."""
    pages = Path("/proc/self/statm")
    taken = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0
    seconds = math.ceil(time.process_time()) + SECONDS
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, taken + MEMORY_BYTES)):
        with suppress(ValueError, OSError):  # macOS has no limit on address space
            resource.setrlimit(kind, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
