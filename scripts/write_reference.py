"""Write the reference pages that are derived from the code: docs/recipe.md and docs/metrics.md.

`python scripts/write_reference.py` writes them; with `--check` it only says whether they are up to date.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from written_files import ROOT, parser, write

from gtpo_cli.recipe.methods import METHODS
from gtpo_cli.recipe.schema import BUILTIN_DEFAULTS, RELEASED_CODE_DEFAULTS, Recipe
from gtpo_cli.tracking import metrics_table

DOCS = ROOT / "docs"


def recipe_page() -> str:
    lines = [
        "# Every key of a recipe",
        "",
        "Written from `gtpo_cli/recipe/schema.py` by `scripts/write_reference.py`. Only `model.name` and",
        "`data.benchmark` have no default. `--set key=value` overrides any key; the value is read as YAML, and a",
        "mapping is merged into what is there.",
        "",
        "| key | values | default | meaning |",
        "|---|---|---|---|",
        *rows(Recipe),
        "",
        "## Defaults that follow from other keys",
        "",
        "They hold where the recipe is silent.",
        "",
        "| when | key | default |",
        "|---|---|---|",
    ]
    groups = {f"`objective.name: {name}`": method.switches for name, method in METHODS.items()}
    groups["`objective.compat: released_code`"] = RELEASED_CODE_DEFAULTS
    groups["`model.name: builtin:...`"] = BUILTIN_DEFAULTS
    for when, changes in groups.items():
        lines += [f"| {when} | `{key}` | `{shown(value)}` |" for key, value in changes.items()]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    return (
        "# Every metric of a run\n\n"
        "Written from `gtpo_cli/tracking/metrics.py` by `scripts/write_reference.py`. The names are the same in\n"
        "`metrics.jsonl` (one JSON object a step), on the console, in wandb and in TensorBoard.\n\n"
        f"{metrics_table().rstrip()}\n"
    )


def rows(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = section_of(field.annotation)
        description = (field.description or "").replace("|", "\\|")
        if inner is not None:
            optional = type(None) in get_args(field.annotation)
            yield f"| **{prefix}{name}** | section{' or null' if optional else ''} | | {description} |"
            yield from rows(inner, f"{prefix}{name}.")
        else:
            yield f"| `{prefix}{name}` | {values(field)} | {default(field)} | {description} |"


def section_of(annotation: Any) -> type[BaseModel] | None:
    candidates = [annotation, *get_args(annotation)] if get_origin(annotation) is not tuple else []
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def values(field: FieldInfo) -> str:
    bounds = [text for item in field.metadata if (text := bound(item))]
    return " ".join([kind(field.annotation), *bounds]).replace("|", "\\|")


def kind(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        return " ".join([kind(inner), *(text for item in metadata if (text := bound(item)))])
    if origin is Literal:
        return " / ".join(f"`{value}`" for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(kind(part) for part in get_args(annotation))
    if origin is tuple:
        parts = [part for part in get_args(annotation) if part is not Ellipsis]
        listed = ", ".join(kind(part) for part in parts)
        return f"list of {listed}" if Ellipsis in get_args(annotation) else f"[{listed}]"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "{" + ", ".join(annotation.model_fields) + "}"
    names = {int: "whole number", float: "number", bool: "true / false", str: "text", type(None): "null"}
    return names.get(annotation, str(annotation))


def bound(item: Any) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [f"{sign} {getattr(item, name)}" for name, sign in signs.items() if getattr(item, name, None) is not None]
    return ", ".join(found)


def default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "" if value is PydanticUndefined else f"`{shown(value)}`"


def shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(shown, value)) + "]"
    return " ".join(str(value).split())


def main() -> int:
    check = parser(__doc__).parse_args().check
    return write({DOCS / "recipe.md": recipe_page(), DOCS / "metrics.md": metrics_page()}, check=check)


if __name__ == "__main__":
    sys.exit(main())
