"""Write the recipe of `gtpo init --from-config`: a translated file of another tool, with a list of what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gtpo_cli.data.benchmarks import BENCHMARKS
from gtpo_cli.data.guess import guessed_data
from gtpo_cli.errors import DataError, RecipeError
from gtpo_cli.machine.first_recipe import recipe_lines
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.recipe.data import OWN, SourceRecipe
from gtpo_cli.recipe.section import Section
from gtpo_cli.text import one_line
from gtpo_cli.tools.translate.foreign import Foreign, read_foreign
from gtpo_cli.tools.translate.translation import Translation, translate


class TranslatedRecipe(NamedTuple):
    """A recipe's `text`. `remarks`: lines for the user, such as settings without counterpart; `text` has them too."""

    text: str
    tool: str
    remarks: list[str]


def translated_recipe(path: Path, *, model: str | None, data: Mapping[str, str] | None) -> TranslatedRecipe:
    """Translate a file without running it. `model`, `data` (benchmark, and path or dataset) override the file's.

    Raises RecipeError for a file of no known tool, one that names no model or data, and values out of range.
    """
    foreign = read_foreign(path)
    made = translate(foreign)
    name = model or made.document["model"]["name"]
    if not isinstance(name, str):
        raise RecipeError(f"{path}: names no model that can be read; name it: --model MODEL")
    source = dict(data) if data is not None else foreign.source
    if not source:
        raise RecipeError(_no_data(foreign))
    made.document["model"]["name"] = name
    made.document["data"] = _source(source, made) | made.document.get("data", {})
    build_recipe(made.document, where=f"{path}, in gtpo's words")
    remarks = [*made.remarks, *(f"left out: {line}" for line in made.lacking)]
    if made.unknown:
        remarks.append(f"left out, without a counterpart: {', '.join(made.unknown)}")
    notes = {key: words for key, words in made.origins.items() if words not in ("", key.rpartition(".")[2])}
    heading = (
        f"# Translated from {one_line(str(path))} ({foreign.tool}) by gtpo init; behind a key what it is called there."
    )
    end = ["", *(f"# {one_line(line, most=1000)}" for line in remarks)] if remarks else []
    text = "\n".join([heading, *recipe_lines(_in_order(made.document, Recipe), notes), *end]) + "\n"
    return TranslatedRecipe(text, foreign.tool, remarks)


def _no_data(foreign: Foreign) -> str:
    found = [line for line in foreign.unread if line.startswith(("dataset", "load_dataset"))]
    why = f" ({'; '.join(found)})" if found else ""
    return (
        f"{foreign.path}: names no data that can be read{why}; name them: --data FILE or a hub id, or --benchmark gsm8k"
    )


def _source(source: dict[str, Any], made: Translation) -> dict[str, Any]:
    """Write a set of data as in a recipe: by name if it is a known benchmark, else with its columns."""
    section = SourceRecipe.model_validate(source)
    known = {spec.hub.id: name for name, spec in BENCHMARKS.items() if spec.hub and "train" in (spec.hub.splits or ())}
    if section.dataset is not None and section.name in known:
        source = {"benchmark": known[section.name]}
    elif section.benchmark in OWN:
        try:
            source = guessed_data(section) | source
        except DataError as error:
            made.remarks.append(f"data.columns: {section.name} is not here to be looked at: {error}")
    if made.limit is not None:
        source["limit"] = made.limit
    if source.get("split") == "train":
        del source["split"]
    return _in_order(source, SourceRecipe)


def _in_order(values: Mapping[str, Any], section: type[Section]) -> dict[str, Any]:
    """Sort keys as in the recipe's section."""
    inner = {key: info.annotation for key, info in section.model_fields.items()}
    sections = {key: kind for key, kind in inner.items() if isinstance(kind, type) and issubclass(kind, Section)}
    return {
        key: _in_order(values[key], sections[key]) if key in sections else values[key] for key in inner if key in values
    }
