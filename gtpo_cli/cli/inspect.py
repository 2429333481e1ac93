"""gtpo inspect"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gtpo_cli.cli.options import RunArgument, find_run
from gtpo_cli.cli.printing import suggest
from gtpo_cli.errors import EvaluationError


def inspect(
    run: RunArgument = None,
    step: Annotated[int | None, typer.Option(metavar="N", help="A stored step (default: the newest).")] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="N|ID|all", help="Which problem of the step (default: one with differences).")
    ] = None,
    completion: Annotated[
        int | None, typer.Option(metavar="N", help="One completion, token by token: every figure, and why.", min=1)
    ] = None,
    html: Annotated[
        bool, typer.Option("--html", help="Write a page for the browser: all problems of the step.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="With --html: the file to write.")] = None,
) -> None:
    """A training step as GTPO saw it: each completion's tokens coloured by their weight lambda, and why.

    gtpo inspect runs/my-run --step 100

    gtpo inspect runs/my-run --step 100 --problem 2 --completion 3

    gtpo inspect runs/my-run --html
    """
    from gtpo_cli.report.inspection import read_step
    from gtpo_cli.report.inspection_views import print_step, print_tokens, write_page
    from gtpo_cli.tracking.console import Console

    folder = find_run(run, what="inspect")
    inspected = read_step(folder, step)
    groups = inspected.choose(problem)
    console = Console(highlight=False, markup=False, emoji=False)
    if html:
        page = write_page(inspected, out or folder.report / f"inspect-step-{inspected.step:06d}.html")
        print(f"{page}\nopen it: {page.resolve().as_uri()}")
    elif completion is not None:
        group = groups[0]
        if completion > len(group.completions):
            raise EvaluationError(f"problem {group.number} has {len(group.completions)} completions, no {completion}")
        print_tokens(console, group, group.completions[completion - 1], inspected.objective.conflict)
    else:
        print_step(console, inspected, groups)
        if len(groups) < len(inspected.groups):
            print(f"\nproblem {groups[0].number} of {len(inspected.groups)}; another with --problem, all with --html;")
            print("one completion token by token with --completion")
    suggest("generate", folder.path)
