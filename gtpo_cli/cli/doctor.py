"""gtpo doctor"""

from __future__ import annotations

from pathlib import Path

import typer

from gtpo_cli.cli.options import JsonOption, RecipeOption, SetOption, as_typed
from gtpo_cli.cli.printing import print_json, suggest
from gtpo_cli.recipe import load_recipe
from gtpo_cli.runs.folder import RUNS

EXIT_CANNOT_START = 1
_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


def doctor(recipe: RecipeOption = None, set_: SetOption = None, as_json: JsonOption = False) -> None:
    """Check whether training can start here: software, GPU, engines, hub, wandb, disk. Each problem has a remedy.

    It checks for --recipe, or else for the built-in model. The exit code is 1 if training cannot start.
    """
    from gtpo_cli.cli.app import as_typed_here
    from gtpo_cli.machine.ready import examine

    if set_ and recipe is None:
        raise typer.BadParameter("--set changes a recipe; name it with --recipe")
    loaded = load_recipe(recipe, set_ or []) if recipe is not None else None
    findings = examine(loaded, output_dir=Path(loaded.output_dir) if loaded is not None else RUNS)
    problems = [finding.subject for finding in findings if finding.state == "problem"]
    if as_json:
        print_json({"recipe": recipe, "can_start": not problems, "findings": findings})
        raise typer.Exit(EXIT_CANNOT_START if problems else 0)
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        print(f"{_MARKS[finding.state]:<8} {finding.subject:<{width}}  {as_typed_here(finding.words)}")
        if finding.remedy and finding.state != "ok":
            print(f"{'':<8} {'':<{width}}  -> {as_typed_here(finding.remedy)}")
    name = recipe or "the built-in model"
    if problems:
        print(f"{name} cannot start here: {', '.join(problems)}")
        raise typer.Exit(EXIT_CANNOT_START)
    print(f"{name} can start here")
    suggest("train", *(["--recipe", recipe, *as_typed(set_)] if recipe else []))
