"""The prompts and rewards of an exported policy, kept in export.json so that gtpo treats the folder like its run.

Only values that cannot name code or local files are kept and read, because an export may come from anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import JsonValue

from gtpo_cli.data.benchmarks import BENCHMARKS
from gtpo_cli.errors import ExportError, ModelError
from gtpo_cli.policy.adapter_config import check_adapter_config
from gtpo_cli.policy.tiny import recipe_name
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.recipe.data import GENERATED
from gtpo_cli.runs.checkpoints import Checkpoint
from gtpo_cli.runs.files import Count, guarded, read_json
from gtpo_cli.text import one_line

RECORD = "export.json"
_FORMATS = ("adapter", "merged")  # gtpo can load these
_MODEL = ("revision", "dtype", "load_in_4bit", "lora", "max_seq_length")
_DATA = ("benchmark", "columns", "max_prompt_tokens", "system_prompt")
_REWARDS = ("format", "accuracy", "length")
_SELF_CONTAINED = (*BENCHMARKS, *GENERATED)  # found by name; other data are local files


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
    base: str
    asked: RecipeSections


class Export(NamedTuple):
    """An exported policy. `checkpoint` is the adapter of an adapter export; None if the folder is the model."""

    recipe: Recipe
    checkpoint: Checkpoint | None
    run: str
    step: int


def conditions_of(recipe: Recipe) -> RecipeSections:
    """Return the parts of a recipe that an export of its run keeps."""
    document: dict[str, Any] = recipe.model_dump(mode="json")
    data = _only(document["data"], _DATA)
    if data["benchmark"] not in _SELF_CONTAINED:
        del data["benchmark"]
    return RecipeSections(
        recipe.seed, _only(document["model"], _MODEL), data, _only(document["rewards"], _REWARDS),
        document["evaluation"],
    )  # fmt: skip


def read_export(folder: Path, overrides: Sequence[str] = ()) -> Export | None:
    """Return an exported folder with a recipe for the prompts and rewards of its run; None if it has no such record.

    The run's own rewards are code, so they are left out. Raises ExportError for a record that cannot be read,
    RecipeError for one that gives no valid recipe.
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
        recipe = build_recipe(_document(folder, record, record.asked), overrides, where=str(file))
    checkpoint = None
    if record.format == "adapter":
        here = folder.resolve()
        checkpoint = Checkpoint(record.step, here.parent, weights=here.name)
    return Export(recipe, checkpoint, one_line(record.run), record.step)


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
    rewards = _only(asked.rewards, _REWARDS)
    if not any(rewards[name]["weight"] for name in ("format", "accuracy", "length")):
        rewards["format"]["weight"] = 1.0  # the run had only its own rewards; a recipe needs one
    return {
        "seed": asked.seed, "model": model, "data": {"benchmark": "gsm8k"} | _only(asked.data, _DATA),
        "rewards": rewards, "evaluation": asked.evaluation,
    }  # fmt: skip


def _only(section: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: section[name] for name in names if name in section}
