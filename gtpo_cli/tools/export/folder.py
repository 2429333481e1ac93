"""The folder of an export. It is written aside and gets its name only when it is complete and checked.

Beside the model it holds the model card (README.md) and export.json, which records what was exported and how, the
result of the check, and the prompts and rewards of the policy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from gtpo_cli.errors import ExportError
from gtpo_cli.runs.files import folder_aside, read_json, writing
from gtpo_cli.runs.folder import package_versions
from gtpo_cli.tools.export.check import LogprobGap
from gtpo_cli.tools.export.conditions import RECORD, RecipeSections

CARD = "README.md"
Format = Literal["adapter", "merged", "gguf"]


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export, as in export.json. `base`: its public name. `difference_from_policy`: measured on the answers
    to `prompts` questions. `rounding`: the difference from the full-precision base with the adapter, if the policy was
    trained on another base or in 4 bits. `notes`: sentences about losses. `asked`: the prompts and rewards of the
    run."""

    run: str
    step: int
    format: Format
    dtype: str
    base: str
    prompts: int
    difference_from_policy: LogprobGap
    rounding: LogprobGap | None
    notes: tuple[str, ...]
    asked: RecipeSections


@dataclass(frozen=True, slots=True)
class _EarlierExport:
    files: tuple[str, ...]


def check_free(folder: Path) -> None:
    """Raise ExportError if the folder holds anything but an earlier export, which a new one replaces."""
    has_name = folder.name not in ("", "..")  # the temporary folder is named after it
    if not has_name or folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ExportError(f"{folder}: is not a plain folder; name another with --out")
    if not folder.is_dir():
        return
    try:
        earlier = {*read_json(folder / RECORD, _EarlierExport, ExportError).files, RECORD}
    except ExportError:  # not an export
        earlier = set()
    foreign = sorted(set(_files(folder)) - earlier)
    if foreign:
        more = ", ..." if len(foreign) > 3 else ""
        raise ExportError(
            f"{folder}: holds files that are not from an earlier export ({', '.join(foreign[:3])}{more}) and would be "
            "lost; name another folder with --out, or empty this one"
        )


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """Yield a new empty folder that replaces `folder` at the end. After an error, nothing of it stays.

    Raises ExportError if writing fails.
    """
    remedy = "make room, or name another folder with --out"
    with writing(lambda why: ExportError(f"{folder}: cannot be written ({why}); {remedy}")):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder_aside(folder, replace=True) as aside:
            yield aside


def write_record(folder: Path, exported: Exported) -> None:
    """Write export.json as the last file, because it lists the others."""
    made = {"made": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "packages": package_versions(), "files": _files(folder)}
    text = json.dumps({"gtpo_export": 1} | asdict(exported) | made, indent=2)
    (folder / RECORD).write_text(text + "\n", encoding="utf-8")


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
