"""One grading worker, which reads questions and writes answers as lines of JSON. `EqualityWorkers` starts it.

    {"gold": "1/2", "predicted": "0.5", "question": null, "seconds": 5.0}  ->  {"verdict": true}  are they equal?
    {"gold": "1/2", "predicted": null, "question": null, "seconds": 5.0}   ->  {"verdict": true}  is the gold usable?

"question" is the problem's, if copies from it do not count as answers.

A worker that grew large adds "retires" to its answer ({"verdict": true, "retires": true}) and is replaced.

Before the first answer it writes {"ready": true}, so that the time to import sympy does not count.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TextIO

from gtpo_cli.rewards.equality import PATIENCE

MEMORY_LIMIT_BYTES = 1024**3  # of address space
RETIRE_BYTES = 256 * 1024**2  # of memory in use after an answer; a larger worker retires to free its caches
_GRACE_SECONDS = 10.0


def main() -> None:
    """Serve until the caller closes standard input."""
    _limit_memory()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not look like a reply
    from gtpo_cli.rewards.mathematics import parses, same_mathematics
    from gtpo_cli.rewards.same_answer import equal, usable

    same_mathematics("(x+1)^2", "x^2+2x+1")  # load what sympy loads on first use before the first answer
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        question = json.loads(line)
        # Processor time, so that a busy machine changes no grade. The kernel ends the process even inside C code.
        signal.setitimer(signal.ITIMER_PROF, question["seconds"])
        # The caller kills a worker that got too little of it. If the caller is dead, the kernel does.
        signal.setitimer(signal.ITIMER_REAL, PATIENCE * question["seconds"] + _GRACE_SECONDS)
        try:
            if question["predicted"] is None:
                verdict = usable(question["gold"], parses)
            else:
                gold, predicted = question["gold"], question["predicted"]
                verdict = equal(gold, predicted, same_mathematics, question=question["question"])
        except MemoryError:
            os._exit(1)  # full caches would starve the next answers; the caller starts a new worker
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0.0)
        retires = {"retires": True} if _resident_bytes() > RETIRE_BYTES else {}
        _reply(replies, {"verdict": verdict, **retires})


def _limit_memory() -> None:
    for kind, limit in ((resource.RLIMIT_AS, MEMORY_LIMIT_BYTES), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        try:
            resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
        except (ValueError, OSError):  # macOS has no limit on address space
            continue


def _resident_bytes() -> int:
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:  # macOS reports only the peak
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(pages) * resource.getpagesize()


def _reply(replies: TextIO, message: dict[str, bool]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
