"""Shell completion of recipes, benchmarks, recipe keys with their values, and run folders.

Each function gets the typed start of a word and returns the whole words that begin with it. If there are none, the
shell completes files. Import nothing heavy here: this runs at every press of the Tab key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import typer

from gtpo_cli.errors import GtpoError
from gtpo_cli.recipe import Recipe, load_recipe, shipped_recipes
from gtpo_cli.recipe.section import Section, fields_of
from gtpo_cli.run_folder import RECIPE_FILE, RUNS

_BREAKS = "=:@"  # bash splits a typed word at these
_WORDS, _NUMBER, _BEFORE = "COMP_WORDS", "COMP_CWORD", "GTPO_COMPLETE_BEFORE"


def join_words_of_bash() -> None:
    """Rejoin words that bash splits, such as `objective.name=grpo`.

    Bash completes only the last part. `_typed_word` gets the part before it from the environment."""
    words = os.environ[_WORDS].split("\n")[: int(os.environ[_NUMBER]) + 1]
    joined, glue = [""], True
    for word in words:
        cut = bool(word) and not word.strip(_BREAKS)
        if (glue and word) or cut:
            joined[-1] += word
        else:
            joined.append(word)
        glue = cut
    if joined[-1].startswith("--") and "=" in joined[-1]:
        joined[-1:] = joined[-1].split("=", 1)
    before = joined[-1][: 1 + max(map(joined[-1].rfind, _BREAKS))]
    os.environ[_BEFORE] = before
    os.environ[_WORDS] = "\n".join([*joined[:-1], joined[-1].removeprefix(before)])
    os.environ[_NUMBER] = str(len(joined) - 1)


def recipes(incomplete: str) -> list[str]:
    """Complete shipped recipes and YAML files."""
    files = [path for path in _siblings(incomplete) if path.endswith((".yaml", ".yml"))]
    return [name for name in (*shipped_recipes(), *files) if name.startswith(incomplete)]


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete runs in the typed folder, in runs/, and in the output_dir of the named recipe."""
    before, typed = _typed_word(incomplete)
    folders = [str(RUNS)]
    with suppress(GtpoError):
        if recipe := ctx.params.get("recipe"):
            folders.append(load_recipe(recipe, ctx.params.get("set_") or ()).output_dir)
    found = {path for start in (typed, *(f"{folder}/" for folder in folders)) for path in _siblings(start)}
    named = sorted(path for path in found if path.startswith(typed) and Path(path, RECIPE_FILE).is_file())
    return [path.removeprefix(before) for path in named]


def overrides(incomplete: str) -> list[str]:
    """Complete `key=`, and then the values of a key that has few. A single key comes with its values, so that the
    shell adds no space after it."""
    before, typed = _typed_word(incomplete)
    kinds = _keys()
    key, equals, _ = typed.partition("=")
    if equals:
        found = [f"{key}={value}" for value in _values(kinds.get(key))]
    else:
        found = [f"{key}=" for key in kinds if key.startswith(typed)]
        if len(found) == 1:
            found += [found[0] + value for value in _values(kinds[found[0][:-1]])] or [found[0] + "VALUE"]
    return [word.removeprefix(before) for word in found if word.startswith(typed)]


def _keys() -> dict[str, Any]:
    """Return the keys that --set takes, with their types: no sections, and no keys inside lists."""
    kinds = {key: field.annotation for key, field in fields_of(Recipe).items()}
    lists = tuple(f"{key}." for key, kind in kinds.items() if get_origin(kind) is tuple)
    sections = {key for key, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)}
    return {key: kind for key, kind in kinds.items() if key not in sections and not key.startswith(lists)}


def _values(kind: Any) -> Iterator[str]:
    """Yield the values of a type in YAML if they are few words; null if it is optional."""
    if kind is NoneType:
        yield "null"
    elif kind is bool:
        yield from ("true", "false")
    elif get_origin(kind) is Literal:
        yield from (str(value).lower() if isinstance(value, bool) else str(value) for value in get_args(kind))
    elif get_origin(kind) is not tuple:
        for inner in get_args(kind):
            yield from _values(inner)


def _typed_word(incomplete: str) -> tuple[str, str]:
    """Return the part of the word that bash keeps for itself, and all that is typed of the word."""
    before = os.environ.get(_BEFORE, "")
    return before, before + incomplete


def _siblings(typed: str) -> list[str]:
    """List the paths in the folder of a partly typed path, spelled as typed."""
    folder = typed[: typed.rfind("/") + 1]
    with suppress(OSError):
        return sorted(folder + path.name for path in Path(folder or ".").iterdir() if not path.name.startswith("."))
    return []
