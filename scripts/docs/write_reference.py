"""Write the reference pages that are derived from the code: docs/recipe.md and docs/metrics.md.

`python scripts/docs/write_reference.py` writes them; with `--check` it only says whether they are up to date.
"""

from __future__ import annotations

import sys
import textwrap
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from written_files import ROOT, parser, write

from gtpo_cli.recipe.methods import CLIPS, METHODS
from gtpo_cli.recipe.schema import BUILTIN_DEFAULTS, Recipe
from gtpo_cli.tracking import metrics_table

DOCS = ROOT / "docs"
LONG = 80  # what a line of code holds on the site


def recipe_page() -> str:
    lines = [
        "# Every key of a recipe",
        "",
        "Each key has its default, and its values and meaning after a `#`, behind it or above it. `model.name` and",
        "`data.benchmark` have no default. `--set key=value` overrides any key: the value is read as YAML, and a",
        "mapping is merged into what is there.",
        "",
        "```yaml",
        *rows(Recipe),
        "```",
        "",
        "## Defaults that follow from other keys",
        "",
    ]
    others = {name: switches for name, switches in METHODS.items() if switches}
    shared = {
        key: value for key, value in others["grpo"].items() if all(one.get(key) == value for one in others.values())
    }
    groups = {"`objective.name` other than `gtpo`": shared}
    for name, switches in others.items():
        groups[f"`objective.name: {name}`"] = {key: value for key, value in switches.items() if key not in shared}
    groups |= {f"`objective.loss.rule: {rule}`": dict(ends) for rule, ends in CLIPS.items()}
    groups["`model.name: builtin:...`"] = BUILTIN_DEFAULTS
    for when, changes in groups.items():
        if changes:
            said = f"- {when}: {', '.join(f'`{key}: {shown(value)}`' for key, value in changes.items())}"
            lines += textwrap.wrap(said, LONG, subsequent_indent="  ", break_on_hyphens=False)
    lines += [
        "- `data.curriculum` or `data.rest_after`: `training.keep_best: null`",
        "- `model.max_seq_length`: `rollout.max_completion_tokens` is half of it, or what a written",
        "  `data.max_prompt_tokens` leaves, at most 1500; `data.max_prompt_tokens` is the rest, at least half, at most",
        "  4000",
        "- those two: `model.max_seq_length` is 5500 or their sum, whichever is larger",
        "",
        "A recipe with every key, such as a run's, counts a value that equals the default of its method or rule as",
        "left out: `--set objective.name=grpo` changes the whole method.",
        "",
        "`docs/engines.md` explains `auto` in `model`, `optimizer` and `rollout`.",
        "",
        "A key of another tool (`num_generations`, `lora_r`, `beta`) is an error that names gtpo's key.",
        "`docs/other_tools.md` translates whole files.",
    ]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    return (
        "# Every metric of a run\n\n"
        "The names are the same in `metrics.jsonl` (one JSON object a step), on the console, in wandb and in\n"
        "TensorBoard. Means and shares are over the step's completions. A share lies between 0 and 1; points and the\n"
        "loss take any value, all others are 0 or more. Symbols: `docs/objective.md`.\n\n"
        f"{metrics_table().rstrip()}\n\n"
        "## wandb and TensorBoard\n\n"
        "Both also get tables: `samples`, the completions of step 1 and of every `tracking.log_completions_every`th\n"
        "step with the reason why one was `filtered`, and `evaluation/<benchmark>`, the answers of each evaluation.\n\n"
        "In wandb the recipe is the run's config, and the summary holds the newest values. A resumed run keeps its\n"
        "id. If it made steps again, after a kill, wandb keeps the old points of these steps beside the new ones;\n"
        "`metrics.jsonl` has the new ones alone. wandb adds the use of GPU, CPU, memory, disk and network; the\n"
        "machine's name, hardware and packages stay here. **Online, prompts and completions are uploaded.**\n"
        "`tracking.wandb.mode: offline` keeps them here, and the terminal shows the command that uploads them later.\n"
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
        above = textwrap.wrap(
            comment.replace("|", " | "), LONG, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   "
        )
        alone = textwrap.wrap(f"{indent}{first}", LONG, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
        yield from [line] if len(line) <= LONG else [*above, *alone]
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
        return "|".join(map(str, inner))
    if origin in (Union, types.UnionType):
        joined = "|".join(kind(part, metadata, named=True) for part in inner if part is not type(None))
        return joined if joined != "text" else ""
    if origin is tuple:
        each = kind(inner[0], named=Ellipsis in inner)
        return f"list of {each}" if Ellipsis in inner else each
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "{" + ", ".join(annotation.model_fields) + "}"
    names = {int: "integer", float: "number", bool: "true|false", str: "text"}
    return " ".join(part for part in (names[annotation] if named else "", bounds(metadata)) if part)


def bounds(metadata: Iterable[Any]) -> str:
    """As `≥1` or `<1`; where there are two as `0≤x<1`."""
    given = {
        name: f"{value:{'g' if isinstance(value, float) else ''}}"
        for item in metadata
        for name in ("ge", "gt", "le", "lt")
        if (value := getattr(item, name, None)) is not None
    }
    low = next(((name, given[name]) for name in ("ge", "gt") if name in given), None)
    high = next((f"{sign}{given[name]}" for name, sign in (("le", "≤"), ("lt", "<")) if name in given), "")
    if low is None:
        return high
    name, value = low
    return f"{value}{'≤' if name == 'ge' else '<'}x{high}" if high else f"{'≥' if name == 'ge' else '>'}{value}"


def default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "" if value is PydanticUndefined else shown(value)


def shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(one)}" for key, one in value.items()) + "}"
    lines = str(value).splitlines()
    return "\n".join(["|", *lines] if len(lines) > 1 else lines)


def main() -> int:
    check = parser(__doc__).parse_args().check
    return write({DOCS / "recipe.md": recipe_page(), DOCS / "metrics.md": metrics_page()}, check=check)


if __name__ == "__main__":
    sys.exit(main())
