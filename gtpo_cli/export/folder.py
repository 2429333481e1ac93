"""The folder of an export: written aside, and given its name only when it is whole and was checked.

Beside the model it holds README.md, the model card, and export.json: what was exported, how, what the check found, and
how the policy was asked.
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
from gtpo_cli.export.check import LogprobGap
from gtpo_cli.export.conditions import RECORD, Conditions
from gtpo_cli.files import folder_aside, read_json, writing
from gtpo_cli.run_folder import package_versions

CARD = "README.md"
Format = Literal["adapter", "merged", "gguf"]


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export, as export.json has it. `base`: its public name. `difference_from_policy`: over the answers to
    `prompts` questions; `rounding`: from the base in full precision with the adapter, where the policy was trained on
    another base or in 4 bits. `notes`: what the export cost, in sentences. `asked`: for gtpo to ask it as the run."""

    run: str
    step: int
    format: Format
    dtype: str
    base: str
    prompts: int
    difference_from_policy: LogprobGap
    rounding: LogprobGap | None
    notes: tuple[str, ...]
    asked: Conditions | None = None


@dataclass(frozen=True, slots=True)
class _Record:
    files: tuple[str, ...]


def check_free(folder: Path) -> None:
    """Raise ExportError where the folder holds anything but an earlier export, which a new one replaces."""
    own_name = folder.name not in ("", "..")  # which the folder that it is written in first takes after
    if not own_name or folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ExportError(f"{folder}: is no folder of its own; name another with --out")
    if not folder.is_dir():
        return
    try:
        earlier = {*read_json(folder / RECORD, _Record, ExportError).files, RECORD}
    except ExportError:  # it is no export
        earlier = set()
    foreign = sorted(set(_files(folder)) - earlier)
    if foreign:
        more = ", ..." if len(foreign) > 3 else ""
        raise ExportError(
            f"{folder}: holds files that are of no earlier export ({', '.join(foreign[:3])}{more}) and would be lost; "
            "name another folder with --out, or empty this one"
        )


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """A new empty folder; on leaving it takes the place of `folder`. Nothing of it stays where an error is raised.

    Raises ExportError where the disk refuses.
    """
    remedy = "make room, or name another folder with --out"
    with writing(lambda why: ExportError(f"{folder}: cannot be written ({why}); {remedy}")):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder_aside(folder, replace=True) as aside:
            yield aside


def write_record(folder: Path, exported: Exported) -> None:
    """Write export.json, last of all files: it lists the others."""
    made = {"made": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "packages": package_versions(), "files": _files(folder)}
    text = json.dumps({"gtpo_export": 1} | asdict(exported) | made, indent=2)
    (folder / RECORD).write_text(text + "\n", encoding="utf-8")


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
