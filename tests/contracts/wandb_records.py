"""Reads what wandb recorded offline: its file is LevelDB's log format, each record one of wandb's own messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_HEADER, _BLOCK = 7, 32768  # bytes: at the start of the file and of each piece; pieces do not cross blocks
_FULL, _LAST = 1, 4


def records(file: Path) -> Iterator[Any]:
    """The messages in the order in which they were written."""
    from wandb.proto.wandb_internal_pb2 import Record

    content = file.read_bytes()
    assert content.startswith(b":W&B")
    position, whole = _HEADER, b""
    while position + _HEADER <= len(content):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:  # no room for another piece
            position += left
            continue
        size, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        if kind == 0:
            break
        whole += content[position + _HEADER : position + _HEADER + size]
        position += _HEADER + size
        if kind in (_FULL, _LAST):
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def history(file: Path) -> dict[int, dict[str, Any]]:
    """What was logged, by the run's step, which is the axis of all charts; what was logged last counts."""
    rows: dict[int, dict[str, Any]] = {}
    for items in logged(file):
        rows.setdefault(items["step"], {}).update(items)
    return rows


def logged(file: Path) -> list[dict[str, Any]]:
    """Each call of `log`, in order."""
    return [_document(record.history.item) for record in records(file) if record.HasField("history")]


def axes(file: Path) -> dict[str, str]:
    """The axis of each defined metric; a name may end in *."""
    metrics = [record.metric for record in records(file) if record.HasField("metric")]
    return {metric.name or metric.glob_name: metric.step_metric for metric in metrics}


def summary(file: Path) -> dict[str, Any]:
    """What stands beside the run's name on wandb."""
    return _document(item for record in records(file) for item in record.summary.update)


def started(file: Path) -> Any:
    """The run as it was started: id, project, tags, and `config` as a mapping."""
    (run,) = (record.run for record in records(file) if record.HasField("run"))
    return run, _document(run.config.update)


def _document(items: Iterable[Any]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for item in items:
        *outer, last = item.nested_key or [item.key]
        inner = document
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = json.loads(item.value_json)
    return document


def table(file: Path, logged: Any) -> list[dict[str, Any]]:
    """The rows of a logged table, from the file beside the record."""
    document = json.loads((file.parent / "files" / logged["path"]).read_text())
    return [dict(zip(document["columns"], row, strict=True)) for row in document["data"]]
