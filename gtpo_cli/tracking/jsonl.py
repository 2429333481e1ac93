"""metrics.jsonl, the record of a run: one JSON object a step, `step` first, then the metrics in their declared order.

A metric that is not a finite number (a diverged loss) is written as null, since JSON has no NaN, and `read_metrics`
returns NaN for it. Numbers are written with all digits, so reading returns exactly the same floats.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from gtpo_cli.errors import GtpoError
from gtpo_cli.runs.files import append_to, guarded, open_regular, parse_json, read_line, reason, writing_run
from gtpo_cli.tracking.metrics import in_order

_MAX_LINE = 2**20  # bytes; a step has some 3 KB


class JsonlTracker:
    """Appends to metrics.jsonl. When `log` returns, the step was handed to the system in one write.

    `keep_bytes` is None for a new run, whose file must be empty or absent. A resumed run passes the `position` of its
    checkpoint. Later steps are cut off, since they are made again.
    Raises GtpoError if the file cannot be opened or written, or does not match the checkpoint.
    """

    def __init__(self, path: Path, *, keep_bytes: int | None = None) -> None:
        self._path = path
        with self._writing("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that a later close cannot fail on a buffer or write it twice.
            self._file = append_to(path)
        try:
            self._cut(keep_bytes)
        except BaseException:
            self._file.close()
            raise

    @property
    def position(self) -> int:
        """Bytes up to the last logged step, flushed to disk (fsync), since a checkpoint relies on them."""
        with self._writing("written"):
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step. Raises GtpoError (disk full, folder gone, ...)."""
        row: dict[str, float | None] = {"step": step}
        for name in in_order(metrics.keys() - {"step"}):
            value = metrics[name]
            row[name] = value if math.isfinite(value) else None
        rest = memoryview(json.dumps(row, allow_nan=False).encode() + b"\n")
        with self._writing("written"):
            while rest:
                rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        self._file.close()

    def _cut(self, keep_bytes: int | None) -> None:
        size = self._path.stat().st_size
        if keep_bytes is None:
            if size:
                raise GtpoError(
                    f"{self._path}: already holds the metrics of a run; continue it with `gtpo train --resume`, "
                    "or choose another --name"
                )
            return
        with open_regular(self._path) as file:
            file.seek(max(keep_bytes - 1, 0))
            ends_a_line = keep_bytes == 0 or file.read(1) == b"\n"
        if not ends_a_line:
            raise GtpoError(
                f"{self._path}: the checkpoint needs its first {keep_bytes} bytes, but they are missing or "
                f"end inside a line (it has {size} bytes); put the original file back, or start a new run"
            )
        with self._writing("cut"):
            self._file.truncate(keep_bytes)

    def _writing(self, what: str) -> AbstractContextManager[None]:
        return writing_run(
            self._path.parent,
            lambda why, remedy: GtpoError(
                f"{self._path}: metrics cannot be {what} ({why}); {remedy}, then continue with gtpo train --resume "
                f"{self._path.parent}"
            ),
        )


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read the steps in metrics.jsonl in order; null becomes NaN.

    An incomplete last line (the run was killed while writing it) is skipped with a warning. Raises GtpoError if the
    file cannot be read, or if any other line is not a JSON object of numbers with a step.
    """
    lines = []
    wrong = lambda why: GtpoError(f"{path}: metrics cannot be read ({why}); is this a run folder?")  # noqa: E731
    with guarded(wrong), open_regular(path) as stream:
        while line := read_line(stream, path, most=_MAX_LINE):
            lines.append(line.rstrip(b"\n"))
    rows: list[dict[str, float]] = []
    last = max((number for number, line in enumerate(lines, 1) if line), default=0)
    for number, line in enumerate(lines, 1):
        if number > last:
            break
        try:
            rows.append(_parse(line))
        except ValueError as error:
            if number == last:
                warnings.warn(f"{path}:{number}: skipped the last line, which is incomplete", stacklevel=2)
                continue
            raise GtpoError(
                f"{path}:{number}: not a JSON object with a step ({reason(error)}); the file was changed "
                "after the run: remove that line"
            ) from error
    return rows


def _parse(line: bytes) -> dict[str, float]:
    """Parse a line. Raises ValueError if it is not from a run."""
    read = parse_json(line, dict[str, float | None])
    row = {name: math.nan if value is None or not math.isfinite(value) else value for name, value in read.items()}
    step = row.get("step", math.nan)
    if not (step >= 0 and step == round(step)):
        raise ValueError("step: a whole number is missing")
    return {**row, "step": int(step)}
