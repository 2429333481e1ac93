"""Write the reference pages that are derived from the code: docs/recipe.md and docs/metrics.md.

`python scripts/write_reference.py` writes them; with `--check` it only says whether they are up to date.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from written_files import ROOT, parser, write

from gtpo_cli.recipe.methods import METHODS
from gtpo_cli.recipe.schema import BUILTIN_DEFAULTS, RELEASED_CODE_DEFAULTS, Recipe
from gtpo_cli.recipe.synonyms import TABLE
from gtpo_cli.tracking import metrics_table

DOCS = ROOT / "docs"
LONG = 120


def recipe_page() -> str:
    lines = [
        "# Every key of a recipe",
        "",
        "Written from `gtpo_cli/recipe/` by `scripts/write_reference.py`: every key with its default and, behind `#`,",
        "its values and meaning. `model.name` and `data.benchmark` have no default. `--set key=value` overrides any",
        "key: the value is read as YAML, and a mapping is merged into what is there.",
        "",
        "```yaml",
        *rows(Recipe),
        "```",
        "",
        "## Defaults that follow from other keys",
        "",
        "They hold where the recipe is silent.",
        "",
    ]
    others = {name: switches for name, switches in METHODS.items() if switches}
    shared = {
        key: value for key, value in others["grpo"].items() if all(one.get(key) == value for one in others.values())
    }
    groups = {"`objective.name` other than `gtpo`": shared}
    for name, switches in others.items():
        groups[f"`objective.name: {name}`"] = {key: value for key, value in switches.items() if key not in shared}
    groups["`objective.compat: released_code`"] = RELEASED_CODE_DEFAULTS
    groups["`model.name: builtin:...`"] = BUILTIN_DEFAULTS
    for when, changes in groups.items():
        if changes:
            lines.append(f"- {when}: {', '.join(f'`{key}: {shown(value)}`' for key, value in changes.items())}")
    lines += [
        "",
        "## Words of other tools",
        "",
        "What TRL, Unsloth, PEFT, axolotl, LLaMA-Factory, torchtune, verl and the paper call them. An unknown key or",
        "option that is one of these says what to write here.",
        "",
        "| here | there | what differs |",
        "|---|---|---|",
    ]
    for words, key, note in TABLE:
        there = ", ".join(f"`{word}`" for word in words.split())
        lines.append(f"| {f'`{key}`' if key else 'nothing to set'} | {there} | {note} |")
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    return (
        "# Every metric of a run\n\n"
        "Written from `gtpo_cli/tracking/metrics.py` by `scripts/write_reference.py`. The names are the same in\n"
        "`metrics.jsonl` (one JSON object a step), on the console, in wandb and in TensorBoard.\n\n"
        "Those two get tables as well: `samples`, the completions of step 1 and of every\n"
        "`tracking.log_completions_every`th step (prompt, text, answer, rewards, advantage, mean entropy;\n"
        "`filtered` says why one was not trained on), and `evaluation/<benchmark>`, the answers of each evaluation\n"
        "in training. In wandb the recipe is the run's config, `tracking.wandb.tags` its tags, and its summary the\n"
        "newest value of each metric; a resumed run goes on under the same id. Online, prompts and completions are\n"
        "uploaded too: `tracking.wandb.mode: offline` keeps them here.\n\n"
        f"{metrics_table().rstrip()}\n"
    )


def rows(model: type[BaseModel], indent: str = "") -> Iterator[str]:
    """The section as YAML; behind each key, or above it where that gets long, its values and meaning as a comment."""
    for name, field in model.model_fields.items():
        inner, value = section_of(field.annotation), default(field)
        if inner is not None and value != "null":
            yield f"{indent}{name}:  # {field.description}"
            yield from rows(inner, f"{indent}  ")
            continue
        comment = "; ".join(part for part in (kind(field.annotation, field.metadata), field.description) if part)
        first, *others = f"{name}: {value}".rstrip().splitlines()
        line = f"{indent}{first}  # {comment}"
        yield from [line] if len(line) <= LONG else [f"{indent}# {comment}", f"{indent}{first}"]
        yield from (f"{indent}  {other}" for other in others)


def section_of(annotation: Any) -> type[BaseModel] | None:
    candidates = [annotation, *get_args(annotation)] if get_origin(annotation) is not tuple else []
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def kind(annotation: Any, metadata: Iterable[Any] = (), *, named: bool = False) -> str:
    """What a key takes, as far as its default does not show it: choices, bounds, the type where the default is null."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        declared = [bound for item in inner[1:] for bound in getattr(item, "metadata", [item])]
        return kind(inner[0], [*metadata, *declared], named=named)
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (Union, types.UnionType):
        return " | ".join(kind(part, metadata, named=True) for part in inner if part is not type(None))
    if origin is tuple:
        each = kind(inner[0], named=Ellipsis in inner)
        return f"list of {each}" if Ellipsis in inner else each
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "{" + ", ".join(annotation.model_fields) + "}"
    names = {int: "whole number", float: "number", bool: "true | false", str: "text"}
    return " ".join([names[annotation]] * named + [text for item in metadata if (text := bound(item))])


def bound(item: Any) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = {sign: getattr(item, name, None) for name, sign in signs.items()}
    return " ".join(
        f"{sign}{value:{'g' if isinstance(value, float) else ''}}" for sign, value in found.items() if value is not None
    )


def default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "" if value is PydanticUndefined else shown(value)


def shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(shown, value)) + "]"
    lines = str(value).splitlines()
    return "\n".join(["|", *lines] if len(lines) > 1 else lines)


def main() -> int:
    check = parser(__doc__).parse_args().check
    return write({DOCS / "recipe.md": recipe_page(), DOCS / "metrics.md": metrics_page()}, check=check)


if __name__ == "__main__":
    sys.exit(main())
