"""gtpo report"""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from gtpo_cli.cli.options import complete_runs, find_run
from gtpo_cli.cli.printing import say, suggest
from gtpo_cli.errors import ended_with
from gtpo_cli.terminal.signals import Waiting
from gtpo_cli.terminal.streams import output_is_extra


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Run folders (default: the latest run).", autocompletion=complete_runs),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write (default: the run's report/).")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write one HTML file about one or more runs: curves, benchmark table, recipes, samples. It needs no network.

    Beside it are the charts as SVG and PNG, and the table as Markdown and CSV.

    gtpo report runs/gtpo runs/grpo runs/sft
    """
    from gtpo_cli.pages.run_record import read_run
    from gtpo_cli.tools.report.page import write_report

    names: list[str | None] = list(dict.fromkeys(runs)) if runs else [None]
    folders = [find_run(name, what="report") for name in names]
    records = [read_run(folder) for folder in folders]
    several = folders[0].path.parent / ("report-" + "-".join(record.name for record in records))[:120]
    output_is_extra()
    ended = ended_with(lambda: " before the page was written: the same command starts again")
    with ended, Waiting(say, "drawing the charts"):
        page = write_report(records, out or (folders[0].report if len(folders) == 1 else several))
    print(f"{page}\ncharts and tables for papers are beside it. Open it: {page.resolve().as_uri()}")
    if open_ and not webbrowser.open(page.resolve().as_uri()):
        print("no browser could be started here")
    trained = next((folder for folder in folders if folder.samples.is_dir()), None)
    if trained is not None:
        suggest("inspect", trained.path)
    else:
        suggest("generate", folders[0].path)
