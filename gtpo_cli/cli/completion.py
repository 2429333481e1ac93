"""What the shell completes: names of recipes and benchmarks, keys of a recipe and their values, run folders.

Each function gets what was typed of a word and returns whole words that begin so. Where there is none, the shell
completes files. Nothing heavy may be imported here: it runs at each press of the key.
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

_BREAKS = "=:@"  # where bash cuts a word that is typed
_WORDS, _NUMBER, _BEFORE = "COMP_WORDS", "COMP_CWORD", "GTPO_COMPLETE_BEFORE"


def join_words_of_bash() -> None:
    """Put together again what bash cuts in three (`objective.name=grpo`), for its script asks for the last part alone:
    what stands before that goes to `_whole`, by the environment, as the rest does."""
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
    """Shipped ones, and YAML files."""
    files = [path for path in _beside(incomplete) if path.endswith((".yaml", ".yml"))]
    return [name for name in (*shipped_recipes(), *files) if name.startswith(incomplete)]


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those in the folder that is typed, in runs/, and where the recipe that is named puts them."""
    before, typed = _whole(incomplete)
    folders = [str(RUNS)]
    with suppress(GtpoError):
        if recipe := ctx.params.get("recipe"):
            folders.append(load_recipe(recipe, ctx.params.get("set_") or ()).output_dir)
    found = {path for start in (typed, *(f"{folder}/" for folder in folders)) for path in _beside(start)}
    named = sorted(path for path in found if path.startswith(typed) and Path(path, RECIPE_FILE).is_file())
    return [path.removeprefix(before) for path in named]


def overrides(incomplete: str) -> list[str]:
    """`key=`, and behind it the values of a key that has few. A single key comes with them, so that the shell sets no
    space behind it."""
    before, typed = _whole(incomplete)
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
    """The keys that --set takes one by one, with their types: no sections, and nothing in a list."""
    kinds = {key: field.annotation for key, field in fields_of(Recipe).items()}
    lists = tuple(f"{key}." for key, kind in kinds.items() if get_origin(kind) is tuple)
    sections = {key for key, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)}
    return {key: kind for key, kind in kinds.items() if key not in sections and not key.startswith(lists)}


def _values(kind: Any) -> Iterator[str]:
    """What a value of this type can be, as YAML has it, where those are few words; null where it may be left out."""
    if kind is NoneType:
        yield "null"
    elif kind is bool:
        yield from ("true", "false")
    elif get_origin(kind) is Literal:
        yield from (str(value).lower() if isinstance(value, bool) else str(value) for value in get_args(kind))
    elif get_origin(kind) is not tuple:
        for inner in get_args(kind):
            yield from _values(inner)


def _whole(incomplete: str) -> tuple[str, str]:
    """(what bash keeps for itself of a word, all that is typed of it)"""
    before = os.environ.get(_BEFORE, "")
    return before, before + incomplete


def _beside(typed: str) -> list[str]:
    """The paths in the folder of a path that is being typed, written as it is."""
    folder = typed[: typed.rfind("/") + 1]
    with suppress(OSError):
        return sorted(folder + path.name for path in Path(folder or ".").iterdir() if not path.name.startswith("."))
    return []
