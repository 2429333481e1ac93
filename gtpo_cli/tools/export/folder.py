"""The folder of an export. It is written aside and gets its name only when it is complete and checked.

Beside the model it holds the model card (README.md) and export.json, which records what was exported and how, the
result of the check, and the prompts and rewards of the policy.

Of a run's recipe it keeps what gtpo needs to treat the folder like the run: only values that cannot name code or local
files are kept and read, because an export may come from anybody.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import JsonValue

from gtpo_cli.data.benchmarks import BENCHMARKS
from gtpo_cli.errors import ExportError, ModelError
from gtpo_cli.policy.adapter_config import check_adapter_config
from gtpo_cli.policy.tiny import recipe_name
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.recipe.data import BUILT_IN, GYM
from gtpo_cli.recipe.section import code_names
from gtpo_cli.runs.checkpoints import Checkpoint
from gtpo_cli.runs.files import Count, folder_aside, guarded, read_json, writing
from gtpo_cli.runs.folder import package_versions
from gtpo_cli.text import one_line
from gtpo_cli.tools.export.check import LogprobGap
from gtpo_cli.types import CodeName

RECORD = "export.json"
_FORMATS = ("adapter", "merged")  # gtpo can load these
_MODEL = ("revision", "dtype", "load_in_4bit", "lora", "max_seq_length")
_DATA = ("benchmark", "config", "columns", "max_prompt_tokens", "system_prompt", "template_arguments")
_REWARDS = ("answer", "format", "accuracy", "length")
_SELF_CONTAINED = (*BENCHMARKS, *BUILT_IN)  # found by name; other data are local files


@dataclass(frozen=True, slots=True)
class RecipeSections:
    """Sections of the run's recipe, reduced to the names above."""

    seed: int
    model: dict[str, JsonValue]
    data: dict[str, JsonValue]
    rewards: dict[str, JsonValue]
    evaluation: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class _ExportRecord:
    run: str
    step: Count
    format: str
    dtype: str
    base: str
    asked: RecipeSections


class Export(NamedTuple):
    """An exported policy. `checkpoint` is the adapter of an adapter export; None if the folder is the model.
    `has_problems`: whether the recipe has the run's problems; it has none that are files, sets of the hub or code."""

    recipe: Recipe
    checkpoint: Checkpoint | None
    run: str
    step: int
    has_problems: bool


def conditions_of(recipe: Recipe) -> RecipeSections:
    """Return the parts of a recipe that an export of its run keeps."""
    document: dict[str, Any] = recipe.model_dump(mode="json")
    data = _only(document["data"], _DATA)
    if data["benchmark"] not in _SELF_CONTAINED and not data["benchmark"].startswith(GYM):
        del data["benchmark"], data["config"]
    evaluation = document["evaluation"]
    found_by_name = [name for name in recipe.evaluation.benchmarks if not isinstance(name, CodeName)]
    evaluation["benchmarks"] = found_by_name or ["gsm8k"]
    return RecipeSections(
        recipe.seed, _only(document["model"], _MODEL), data, _only(document["rewards"], _REWARDS), evaluation
    )


def read_export(folder: Path, overrides: Sequence[str] = ()) -> Export | None:
    """Return an exported folder with a recipe for the prompts and rewards of its run; None if it has no such record.

    The run's own rewards and tasks are code, so they are left out. Raises ExportError for a record that cannot be read
    or that names code, RecipeError for one that gives no valid recipe.
    """
    file = folder / RECORD

    def wrong(why: str) -> ExportError:
        return ExportError(f"{file}: cannot be read ({why}); export the run again")

    if not file.exists() or "gtpo_export" not in read_json(file, dict[str, JsonValue], wrong):
        return None
    record = read_json(file, _ExportRecord, wrong)
    if record.format not in _FORMATS:
        return None
    with guarded(wrong):
        document = _document(folder, record, record.asked)
        for key, name in code_names(build_recipe(document, where=str(file))):
            raise wrong(f"{key} names the code {one_line(name)}, which no export does")
        recipe = build_recipe(document, overrides, where=str(file))
    checkpoint = None
    if record.format == "adapter":
        here = folder.resolve()
        checkpoint = Checkpoint(record.step, here.parent, weights=here.name)
    return Export(recipe, checkpoint, one_line(record.run), record.step, "benchmark" in record.asked.data)


def _base(folder: Path, record: _ExportRecord) -> str:
    """Return the base of an adapter: the one in its configuration if that is a folder here, else the record's."""
    try:
        named = check_adapter_config(folder).base_model_name_or_path
    except ModelError:  # loading the adapter reports it
        named = None
    is_here = named is not None and Path(named).is_absolute() and Path(named).is_dir()
    return recipe_name(named) if named is not None and is_here else record.base


def _document(folder: Path, record: _ExportRecord, asked: RecipeSections) -> dict[str, Any]:
    model = _only(asked.model, _MODEL) | {"name": _base(folder, record)}
    if record.format == "merged":
        model = _only(model, ("max_seq_length",)) | {"name": str(folder), "load_in_4bit": False, "lora": None}
        if record.dtype != "bfloat16":  # which auto is where it is fast, and which would round the others
            model["dtype"] = record.dtype
    rewards = _only(asked.rewards, _REWARDS)
    if not any(rewards[name]["weight"] for name in ("format", "accuracy", "length")):
        rewards["format"]["weight"] = 1.0  # the run had only its own rewards; a recipe needs one
    return {
        "seed": asked.seed, "model": model, "data": {"benchmark": "gsm8k"} | _only(asked.data, _DATA),
        "rewards": rewards, "evaluation": asked.evaluation,
    }  # fmt: skip


def _only(section: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: section[name] for name in names if name in section}


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
