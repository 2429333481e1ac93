"""gtpo sweep"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gtpo_cli.cli.printing import suggest
from gtpo_cli.cli.progress import count_progress, duration
from gtpo_cli.cli.streams import output_is_extra

if TYPE_CHECKING:
    from gtpo_cli.sweeps.execute import Outcome
    from gtpo_cli.sweeps.spec import Sweep, SweepRun

EXIT_FAILED = 1


def sweep(
    file: Annotated[str, typer.Argument(metavar="FILE|NAME", help="A sweep's file, or the name of a shipped one.")],
    jobs: Annotated[int, typer.Option("--jobs", "-j", metavar="N", help="Runs at the same time.", min=1)] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where it lives (default: runs/sweeps/NAME).")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="1,2,3", help="These seeds instead of the file's.")] = None,
    variants: Annotated[str | None, typer.Option(metavar="A,B", help="Only these of the file's variants.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and the time they should take, and stop.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")] = False,
) -> None:
    """Many runs of a recipe, named variants times seeds, and what their differences are worth.

    Runs what is missing; a sweep that was stopped or killed goes on where it was. Ends in a table (also CSV and JSON)
    and a page with the variants' curves.

    gtpo sweep fig2_methods --jobs 2

    gtpo sweep my_sweep.yaml --dry-run
    """
    from gtpo_cli.sweeps.execute import execute
    from gtpo_cli.sweeps.spec import load_sweep

    only = tuple(variants.split(",")) if variants else None
    loaded = load_sweep(file, folder=out, seeds=_seeds(seeds), variants=only)
    if dry_run:
        _print_plan(loaded, jobs)
        suggest("sweep", file, comment=True)
        return
    output_is_extra()
    print(f"sweep {loaded.name}: {len(loaded.runs)} runs in {loaded.folder}", flush=True)
    with count_progress(loaded.name, what="runs", every=0.0, quiet=quiet) as progress:
        state = {"done": sum(_done(loaded, run) for run in loaded.runs)}
        progress(state["done"], len(loaded.runs))

        def tell(event: str, run: SweepRun) -> None:
            if event == "done":
                state["done"] += 1
                progress(state["done"], len(loaded.runs))

        outcome = execute(loaded, jobs=jobs, tell=tell)
    _finish(loaded, outcome, file)


def _seeds(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} are no seeds; write e.g. 1,2,3", param_hint="--seeds") from error


def _done(sweep: Sweep, run: SweepRun) -> bool:
    from gtpo_cli.sweeps.execute import is_done

    return is_done(sweep, run)


def _print_plan(sweep: Sweep, jobs: int) -> None:
    from gtpo_cli.sweeps.execute import check_what_is_there, is_done, seconds_left, seconds_of

    check_what_is_there(sweep)
    for run in sweep.runs:
        state = f"done in {duration(seconds_of(sweep, run))}" if is_done(sweep, run) else "to do"
        print(f"{run.key:<32} {state}")
    missing = sum(not is_done(sweep, run) for run in sweep.runs)
    left = seconds_left(sweep, jobs=jobs)
    when = "unknown: no run is done, and the file names no seconds" if left is None else f"about {duration(left)}"
    print(f"{missing} of {len(sweep.runs)} runs to do, {jobs} at a time: {when}")


def _finish(sweep: Sweep, outcome: Outcome, file: str) -> None:
    if outcome.ended is not None:
        print(f"stopped: {outcome.done} of {outcome.total} runs are done, the others are saved")
        suggest("sweep", file)
        raise typer.Exit(outcome.ended.exit_code)
    if outcome.done:
        from gtpo_cli.sweeps.page import write_results
        from gtpo_cli.sweeps.summary import markdown, summarise

        summary = summarise(sweep)
        page = write_results(sweep, summary)
        print(markdown(summary))
        print(f"{page}\ntable.md, runs.csv, results.json and charts are beside it. Open it: {page.resolve().as_uri()}")
    for key, log in outcome.failed:
        print(f"FAILED {key}: {_last_line(log)} (all of it: {log})")
    if outcome.failed:
        suggest("sweep", file)
        raise typer.Exit(EXIT_FAILED)
    suggest("report", *(run.path for run in sweep.runs if run.seed == sweep.file.seeds[0]))


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
