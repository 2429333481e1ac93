"""gtpo inspect"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gtpo_cli.cli.options import JsonOption, RunArgument, find_run
from gtpo_cli.cli.printing import print_json, suggest
from gtpo_cli.errors import EvaluationError
from gtpo_cli.text import counted

if TYPE_CHECKING:
    from gtpo_cli.tools.report.inspection import InspectedGroup, InspectedStep


def inspect(
    run: RunArgument = None,
    step: Annotated[int | None, typer.Option(metavar="N", help="A stored step (default: the newest).")] = None,
    problem: Annotated[
        str | None,
        typer.Option(metavar="N|ID|all", help="Which problem of the step (default: of the largest spread)."),
    ] = None,
    completion: Annotated[
        int | None,
        typer.Option(metavar="N", help="Show one completion token by token, with every figure and the reason.", min=1),
    ] = None,
    html: Annotated[
        bool, typer.Option("--html", help="Write a page for the browser: all problems of the step.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="With --html: the file to write.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a training step as GTPO saw it: each completion's tokens coloured by their weight lambda, and why.

    gtpo inspect runs/my-run --step 100

    gtpo inspect runs/my-run --step 100 --problem 2 --completion 3

    gtpo inspect runs/my-run --html
    """
    from gtpo_cli.terminal.console import Console
    from gtpo_cli.tools.report.inspection import read_step
    from gtpo_cli.tools.report.inspection_views import print_step, print_tokens, write_page

    if as_json and html:
        raise typer.BadParameter("choose one of --json and --html")
    folder = find_run(run, what="inspect")
    inspected = read_step(folder, step)
    groups = inspected.choose(problem)
    for group in groups:
        if completion is not None and completion > len(group.completions):
            raise EvaluationError(
                f"problem {group.number} has {counted(len(group.completions), 'completion')}, no {completion}"
            )
    if as_json:
        print_json(_document(inspected, groups, completion))
        return
    console = Console()
    if html:
        page = write_page(inspected, out or folder.report / f"inspect-step-{inspected.step:06d}.html")
        print(f"{page}\nopen it: {page.resolve().as_uri()}")
    elif completion is not None:
        for group in groups:
            if len(groups) > 1:
                print(f"problem {group.number} of {len(inspected.groups)}")
            print_tokens(console, group, group.completions[completion - 1], inspected.objective)
    else:
        print_step(console, inspected, groups)
        if len(groups) < len(inspected.groups):
            print(f"\nproblem {groups[0].number} of {len(inspected.groups)}")
            print("--problem shows another, --html all, and --completion one completion token by token")
    suggest("generate", folder.path)


def _document(step: InspectedStep, groups: Sequence[InspectedGroup], completion: int | None) -> dict[str, Any]:
    """Return the stored completions with the keys of the samples file."""
    from pydantic import TypeAdapter

    from gtpo_cli.tools.report.inspection import StoredCompletion

    rows = [row for group in groups for row in group.completions if completion is None or row.number == completion]
    stored = TypeAdapter(list[StoredCompletion]).dump_python(rows, by_alias=True)
    return {"run": step.run.path, "step": step.step, "completions": stored}
