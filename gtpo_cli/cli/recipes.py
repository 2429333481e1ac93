"""gtpo recipes: list, show, copy, check"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gtpo_cli.cli.options import DEFAULT_RECIPE, JsonOption, SetOption, as_typed, complete_recipes
from gtpo_cli.cli.printing import print_json, print_table, suggest
from gtpo_cli.errors import DataError, RecipeError, RewardError
from gtpo_cli.recipe import dump_recipe, find_recipe, load_recipe, shipped_recipes
from gtpo_cli.runs.files import write_aside
from gtpo_cli.terminal.streams import print_whole

recipes = typer.Typer(
    name="recipes", add_completion=False, help="List, show, copy and check recipes.", no_args_is_help=True
)


@recipes.command("list")
def list_recipes(as_json: JsonOption = False) -> None:
    """List the recipes that come with gtpo: what each is for and what it needs.

    The text comes from the first two lines of each file, so the list loads no model and asks no hub. A test compares
    the figures with the plan.
    """
    rows = []
    for name, path in shipped_recipes().items():
        about, needs = (line.removeprefix("#").strip() for line in path.read_text(encoding="utf-8").splitlines()[:2])
        memory, time, *h100 = needs.removeprefix("Needs ").removesuffix(".").split("; ")
        on_h100 = "".join(h100).removeprefix("on an H100 ")
        rows.append({"name": name, "memory": memory, "time": time, "h100": on_h100, "about": about})
    if as_json:
        print_json({"recipes": rows})
        return
    lines = []
    for row in rows:
        on_h100 = f"; on an H100 {row['h100']}" if row["h100"] else ""
        lines += [(row["name"], row["about"]), ("", f"{row['memory']}; {row['time']}{on_h100}")]
    print_table(("recipe", "what it is for, and what it needs"), lines)
    print(f"\n{_HOW}")
    suggest("recipes", "copy", DEFAULT_RECIPE)


_HOW = (
    "GPU memory is gtpo plan's estimate for the smallest GPU that suffices. Hours are an estimate, from the fastest to "
    "the slowest card of that size, for completions a fifth of the limit long; on an H100 with base weights in 4 and "
    "in 16 bits (model.load_in_4bit; gtpo plan --gpu compares them for a card). RAM and minutes were measured on one "
    "CPU core. The paper's baselines and ablations are sweeps of these recipes: gtpo sweep"
)


@recipes.command("show")
def show(
    recipe: Annotated[str, typer.Argument(metavar="FILE|NAME", autocompletion=complete_recipes)],
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a recipe as training would use it: every key with its value."""
    loaded = load_recipe(recipe, set_ or [])
    if as_json:
        print_json({"name": recipe, "recipe": loaded.model_dump(mode="json")})
        return
    print_whole(dump_recipe(loaded).removesuffix("\n"))
    suggest("train", "--recipe", recipe, *as_typed(set_), comment=True)


@recipes.command("copy")
def copy(
    recipe: Annotated[
        str, typer.Argument(metavar="NAME", help="A shipped recipe.", autocompletion=lambda: list(shipped_recipes()))
    ],
    target: Annotated[Path | None, typer.Argument(help="File to write (default: NAME.yaml here).")] = None,
) -> None:
    """Copy a shipped recipe to a file of your own, to change it."""
    source = find_recipe(recipe)
    written = target or Path(source.name)
    if written.is_dir():
        written = written / source.name
    if written.exists():
        raise RecipeError(f"{written}: exists already; name another file")
    write_aside(written, source.read_bytes())
    print(written)
    suggest("train", "--recipe", written)


@recipes.command("check")
def check(
    recipe: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|NAME", help="Default: all shipped.", autocompletion=complete_recipes),
    ] = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check recipes: keys, values, bounds, tasks, your own rewards and rules, and settings that work on no machine.

    All errors are printed at once. To check this machine for a recipe, use gtpo doctor --recipe or gtpo train
    --dry-run.
    """
    from gtpo_cli.machine.ready import check_recipe

    errors: dict[str, list[str]] = {}
    remarks: dict[str, list[str]] = {}
    shipped = {} if recipe else shipped_recipes()
    for name in recipe or shipped:
        try:
            remarks[name] = check_recipe(load_recipe(shipped.get(name, name), set_ or []))
        except (DataError, RecipeError, RewardError) as error:
            errors[name] = error.problems if isinstance(error, RecipeError) else [f"{name}: {error}"]
            for problem in errors[name]:
                print(f"error: {problem}", file=sys.stderr)
        else:
            print(f"ok  {name}" + "".join(f" ({remark})" for remark in remarks[name]))
    if as_json:
        checked = [
            {"name": name, "ok": name in remarks, "errors": errors.get(name, []), "remarks": remarks.get(name, [])}
            for name in recipe or shipped
        ]
        print_json({"ok": not errors, "recipes": checked})
    if errors:
        raise typer.Exit(2)
    if as_json:
        return
    if recipe:
        suggest("train", "--recipe", recipe[0], *as_typed(set_), "--dry-run")
    else:
        suggest("recipes", "list")
