"""One grading worker, which reads questions and writes answers as lines of JSON. `EqualityWorkers` starts it.

    {"gold": "1/2", "predicted": "0.5", "question": null, "seconds": 5.0}  ->  {"score": 1.0}  are they equal?
    {"gold": "1/2", "predicted": null, "question": null, "seconds": 5.0}   ->  {"score": 1.0}  is the gold usable?
    {"load": ["reasoning_gym/gcd", "{}", null]}  ->  {"ready": true}  load a task, or "error"
    {"entry": ["reasoning_gym/gcd", "{}", null, "gASV..."], ...}  ->  {"score": 1.0}  how right it is for a task

"question" is the problem's, if copies from it do not count as answers. "entry": see `types.Entry`. An exception of a
task adds "failed", and the score is 0.

A worker that grew large adds "retires" to its answer ({"score": 1.0, "retires": true}) and is replaced.

Before the first answer it writes {"ready": true}, so that the time to import sympy does not count.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gtpo_cli.errors import GtpoError
from gtpo_cli.rewards.equality import PATIENCE
from gtpo_cli.text import describe

if TYPE_CHECKING:
    from gtpo_cli.tasks import Scores

    Tasks = dict[tuple[str, str, int | None], Scores]

MEMORY_LIMIT_BYTES = 1024**3  # of address space
RETIRE_BYTES = 256 * 1024**2  # in use after an answer, without tasks; a larger worker retires to free its caches
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
    tasks: Tasks = {}
    loaded_bytes = 0
    for line in sys.stdin:
        question = json.loads(line)
        if load := question.get("load"):
            before = _resident_bytes()
            _reply(replies, _loaded(tasks, *load))
            loaded_bytes += _resident_bytes() - before
            continue
        # Processor time, so that a busy machine changes no grade. The kernel ends the process even inside C code.
        signal.setitimer(signal.ITIMER_PROF, question["seconds"])
        # The caller kills a worker that got too little of it. If the caller is dead, the kernel does.
        signal.setitimer(signal.ITIMER_REAL, PATIENCE * question["seconds"] + _GRACE_SECONDS)
        gold, predicted = question["gold"], question["predicted"]
        failed: dict[str, Any] = {}
        try:
            if question["entry"] is not None:
                *task, row = question["entry"]
                score, failed = _scored(tasks[tuple(task)], row, predicted)
            elif predicted is None:
                score = float(usable(gold, parses))
            else:
                score = float(equal(gold, predicted, same_mathematics, question=question["question"]))
        except MemoryError:
            os._exit(1)  # full caches would starve the next answers; the caller starts a new worker
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0.0)
        retires = {"retires": True} if _resident_bytes() > RETIRE_BYTES + loaded_bytes else {}
        _reply(replies, {"score": score, **failed, **retires})


def _loaded(tasks: Tasks, name: str, config: str, level: int | None) -> dict[str, Any]:
    from gtpo_cli.tasks import find_task

    try:
        tasks[name, config, level] = find_task(name, json.loads(config), level)  # type: ignore[assignment]  # only those with a score
    except GtpoError as error:
        return {"error": str(error)}
    return {"ready": True}


def _scored(task: Scores, row: str, answer: str) -> tuple[float, dict[str, Any]]:
    """Return a task's score and, if it raised one or gave no number from 0 to 1, what is wrong."""
    try:
        score = float(task.score(pickle.loads(base64.b64decode(row)), answer))  # gtpo's own process made it
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001  # sys.exit too
        return 0.0, {"failed": describe(error)}
    return (score, {}) if 0.0 <= score <= 1.0 else (0.0, {"failed": f"its score {score} is not from 0 to 1"})


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


def _reply(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
