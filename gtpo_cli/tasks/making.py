"""Make a task's problems, in a process of its own for code that is not gtpo's.

Six tasks of reasoning-gym, and perhaps a user's own, draw from sets of texts, whose order differs between processes
unless PYTHONHASHSEED is set. So another process makes them, which has it, and the same recipe gives the same problems.
It answers lines: name, configuration, split, seed, count, and whether by level.

    ["reasoning_gym/gcd", {}, "train", 1, 500, false]
        ->  a line for each problem: {"question": "...", "answer": "...", "row": "...", ...}, or {"error": "..."}; null

"row" is what the task's own score needs, pickled in base64: JSON would turn tuples into lists, which some verifiers do
not accept.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from gtpo_cli.errors import DataError, GtpoError
from gtpo_cli.recipe.data import BUILT_IN, GYM
from gtpo_cli.runs.user_code import running
from gtpo_cli.tasks import COUNTS, OF_LEVEL, SPLITS, Scores, find_task, level_count
from gtpo_cli.text import shown
from gtpo_cli.types import STEADY, Entry, Problem


def task_problems(
    name: str,
    config: Mapping[str, Any],
    split: str,
    seed: int,
    count: int | None,
    *,
    leveled: bool = False,
    id_prefix: str = "",
) -> tuple[Problem, ...]:
    """Return the first `count` problems of a split, or else as many as the task names; fewer only of a test. With
    `leveled`, of each of its levels.

    A larger count begins with the problems of a smaller one. Raises DataError, also for an unknown split.
    """
    if split not in SPLITS:
        raise DataError(f"data.split: {name} has no split {split}; it has {' and '.join(SPLITS)}")
    if count is not None and count < 1:
        raise DataError(f"data.limit: {count} were asked for")
    make = _made if name in BUILT_IN else _by_process
    problems = tuple(
        Problem(
            id=f"{id_prefix}{name}/{split}/{row['number']}",
            question=row["question"],
            gold=row["answer"],
            solution=row["solution"],
            source=f"{name}[{split}]:{row['number']}",
            columns=row["columns"],
            entry=None if row["row"] is None else Entry(name, json.dumps(dict(config)), row["level"], row["row"]),
            level=row["level"] or 0,
        )
        for row in make(name, config, split, seed, count, leveled)
    )
    if not problems:
        raise DataError(f"{name}: makes no {split} problems")
    if count is not None and len(problems) < count and split == "train" and not leveled:
        raise DataError(f"data.limit: {name} has {len(problems)} {split} problems; {count} were asked for")
    return problems


def arithmetic_problems(count: int, *, split: str, seed: int) -> tuple[Problem, ...]:
    """Return `count` different problems of the built-in task `arithmetic`: see `task_problems`."""
    return task_problems("arithmetic", {}, split, seed, count)


def _by_process(name: str, *asked: Any) -> list[dict[str, Any]]:
    of_library = name.startswith(GYM)
    maker = _library_maker(os.getpid()) if of_library else _Maker(Path.cwd())
    try:
        rows = maker.ask(name, *asked)
    except BaseException:  # it may be in the middle of an answer
        maker.close()
        _library_maker.cache_clear()
        raise
    if not of_library:
        maker.close()
    return rows


class _Maker:
    """A process that makes problems: one for all that a library makes, and one for each call of a user's class, whose
    file may change."""

    def __init__(self, folder: Path) -> None:
        """`folder`: its working folder."""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it
        self._process = subprocess.Popen(
            # -P: the user's folder must not shadow the modules that it imports.
            [sys.executable, "-P", "-m", "gtpo_cli.tasks.making"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True, env=os.environ | STEADY,
            cwd=folder,
        )  # fmt: skip

    def ask(self, name: str, *asked: Any) -> list[dict[str, Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([name, *asked]) + "\n")
            self._process.stdin.flush()
        rows: list[dict[str, Any]] = []
        while reply := self._process.stdout.readline():
            row = json.loads(reply)
            if row is None:
                return rows
            if error := row.get("error"):
                raise DataError(error)
            rows.append(row)
        code = self._process.wait()
        self._said.seek(0)
        raise DataError(
            f"{name}: its process ended with {code} ({shown(self._said.read()[-300:].decode(errors='replace'))})"
        )

    def close(self) -> None:
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._said.close()


@cache
def _library_maker(process_id: int) -> _Maker:
    """Return this process's maker, which imports a library once. A forked child must not read its parent's replies.

    It works in an empty folder: the problems of `codeio` are made by running code that a language model wrote, some of
    which writes files.
    """
    folder = tempfile.TemporaryDirectory(prefix="gtpo-tasks-")  # removed when this process ends
    maker = _Maker(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(maker.close)
    return maker


def _made(
    name: str, config: Mapping[str, Any], split: str, seed: int, count: int | None, leveled: bool
) -> Iterator[dict[str, Any]]:
    for level in range(level_count(name)) if leveled else [None]:
        task = find_task(name, config, level)
        usual = OF_LEVEL if leveled else (COUNTS | getattr(task, "counts", {}))[split]
        with running(lambda said: DataError(f"{name}: {said}")):
            rows = list(islice(task.problems(split, seed), usual if count is None else count))
        for number, row in enumerate(rows, start=1):
            place = {"number": str(number) if level is None else f"{level}.{number}", "level": level}
            yield _checked(name, row, scores=isinstance(task, Scores)) | place


def _checked(name: str, row: Any, *, scores: bool) -> dict[str, Any]:
    if not isinstance(row, Mapping) or not isinstance(row.get("question"), str) or not row["question"].strip():
        raise DataError(f"{name}: problems() gave {shown(row)}; expected a mapping with the text of a question")
    answer, solution = row.get("answer"), row.get("solution")
    if not scores and not str("" if answer is None else answer).strip():
        raise DataError(f"{name}: the question {shown(row['question'])} has no answer, and the task has no score()")
    return {
        "question": row["question"],
        "answer": "" if answer is None else str(answer),
        "solution": None if solution is None else str(solution),
        "columns": json.loads(json.dumps(dict(row), default=str)),
        "row": base64.b64encode(pickle.dumps(dict(row))).decode() if scores else None,
    }


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not look like a reply
    for line in sys.stdin:
        try:
            for row in _made(*json.loads(line)):
                _write(replies, row)
        except GtpoError as error:
            _write(replies, {"error": str(error)})
        _write(replies, None)
        replies.flush()


def _write(replies: TextIO, row: Mapping[str, Any] | None) -> None:
    replies.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
