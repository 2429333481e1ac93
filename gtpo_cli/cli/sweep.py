"""gtpo sweep"""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gtpo_cli.cli.options import QuietOption, SetOption, as_typed, complete_recipes
from gtpo_cli.cli.printing import count_progress, print_table, suggest
from gtpo_cli.recipe import read_mapping, shipped_sweeps
from gtpo_cli.terminal.signals import duration
from gtpo_cli.terminal.streams import output_is_extra
from gtpo_cli.text import counted
from gtpo_cli.tools.sweep.spec import Sweep, as_overrides, chooses, load_sweep

EXIT_FAILED = 1


def sweep(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|FILE]",
            help="A shipped sweep, or a file of your own; without it, list the shipped ones.",
            autocompletion=lambda: list(shipped_sweeps()),
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            "-r",
            metavar="FILE|NAME",
            help="Try the variants on this recipe (default: a small one).",
            autocompletion=complete_recipes,
        ),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="A,B", help="Only these variants.")] = None,
    seeds: Annotated[str | None, typer.Option(metavar="1,2,3", help="These seeds instead of the file's.")] = None,
    set_: SetOption = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", metavar="N", help="Runs at the same time (default: the file's, or 1).", min=1, max=1024
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The sweep's folder (default: runs/sweeps/NAME[-RECIPE]).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List variants, runs and the time they should take, and stop.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Train named variants of a recipe with several seeds, and compare them: every figure of the paper.

    Only missing runs are trained, so the same command continues a sweep that was stopped or killed. The result is a
    table (also CSV and JSON) and a page with the variants' curves.

    gtpo sweep fig5a_kl --recipe llama8b_gsm8k --only grpo_beta0.04 --seeds 1

    gtpo sweep my_sweep.yaml --dry-run
    """
    if name is None:
        _list()
        return
    from gtpo_cli.tools.sweep.execute import execute

    load = partial(
        load_sweep, name, recipe=recipe, overrides=set_ or (), folder=out, seeds=_seeds(seeds),
        only=tuple(only.split(",")) if only else None,
    )  # fmt: skip
    loaded = load()
    options = {"--recipe": recipe, "--only": only, "--seeds": seeds, "--jobs": jobs, "--out": out}
    jobs = jobs or loaded.file.jobs
    command = [name, *(str(part) for pair in options.items() if pair[1] is not None for part in pair), *as_typed(set_)]
    command += ["--quiet"] * quiet
    if dry_run:
        _print_plan(loaded, jobs)
        suggest("sweep", *command, comment=True)
        return
    output_is_extra()
    print(f"sweep {loaded.name}: {counted(loaded.number, 'run')} in {loaded.folder}, {_time(loaded, jobs)}", flush=True)
    with count_progress(loaded.name, unit="run", each=True, quiet=quiet) as progress:
        failed, ended = execute(loaded, jobs=jobs, progress=progress)
        if not loaded.runs and not failed and ended is None:  # the values are chosen now
            loaded = load()
            failed, ended = execute(loaded, jobs=jobs, progress=progress)
    for run, code in failed:
        print(f"FAILED {run.key}: {_why(code, run.log_file)} (all of it: {run.log_file})")
    if ended is not None:
        print(f"stopped: {loaded.done} of {counted(loaded.number, 'run')} are done, the others are saved")
        suggest("sweep", *command)
        raise typer.Exit(ended.exit_code)
    if any(run.is_done for run in loaded.runs):
        _print_results(loaded)
    if failed:
        suggest("sweep", *command)
        raise typer.Exit(EXIT_FAILED)
    suggest("report", *(run.path for run in loaded.runs if run.seed == loaded.file.seeds[0]))


def _list() -> None:
    files = {name: read_mapping(path) for name, path in shipped_sweeps().items()}
    rows = [[name, str(len(file["variants"])), file["about"]] for name, file in files.items()]
    print_table(("sweep", "variants", "what it is about"), rows, numbers=[1])
    suggest("sweep", "fig5a_kl", "--recipe", "llama8b_gsm8k", "--dry-run")


def _seeds(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a list of seeds; write e.g. 1,2,3", param_hint="--seeds") from error


def _print_plan(sweep: Sweep, jobs: int) -> None:
    from gtpo_cli.tools.sweep.execute import check, end_of

    check(sweep)
    print(f"recipe {sweep.recipe}" + "".join(f", {override}" for override in sweep.shared))
    variants = sweep.file.variants.items()
    differ = [[name, ", ".join(as_overrides(changes)) or "nothing: the recipe as it is"] for name, changes in variants]
    print_table(("variant", "what differs"), differ)
    print()
    runs = [[run.key, f"done in {duration(end_of(run).seconds)}" if run.is_done else "to do"] for run in sweep.known]
    print_table(("run", ""), runs)
    print()
    if (tune := sweep.file.tune) is not None and not sweep.runs:
        print(
            f"these choose {tune.key} for each variant, by {chooses(tune, sweep.choosing[0].recipe).text}; then come "
            f"{counted(sweep.number - len(sweep.choosing), 'run')} with seeds {', '.join(map(str, sweep.file.seeds))}"
        )
    print(f"{sweep.number - sweep.done} of {counted(sweep.number, 'run')} to do, {_time(sweep, jobs)}")


def _time(sweep: Sweep, jobs: int) -> str:
    from gtpo_cli.tools.sweep.execute import seconds_left

    left = seconds_left(sweep, jobs=jobs)
    when = "how long that takes is known after the first one" if left is None else f"about {duration(left)}"
    return f"{jobs} at a time: {when}"


def _print_results(sweep: Sweep) -> None:
    from gtpo_cli.tools.sweep.estimates import columns, estimate, stopped_words, table_rows
    from gtpo_cli.tools.sweep.page import write_results

    estimates = estimate(sweep)
    page = write_results(sweep, estimates)
    if (tune := sweep.file.tune) is not None:
        chosen = [[variant, str(value), f"{mean:.3f}"] for variant, (value, mean) in sweep.chosen.items()]
        print_table(("variant", tune.key, chooses(tune, sweep.choosing[0].recipe).text), chosen, numbers=[1, 2])
        print()
    print_table(columns(estimates), table_rows(estimates), numbers=[2, 3, 4, 5, 6])
    print()
    if stopped := stopped_words(estimates):
        print(stopped)
    for name, figure in sweep.file.figures.items():
        if all(name not in values for values in estimates.values.values()):
            print(f"{name} is not in the table: no run has logged the metric of {figure.text!r}")
    print(f"{page}\ntable.md, runs.csv, results.json and charts are beside it. Open it: {page.resolve().as_uri()}")


def _why(code: int, log: Path) -> str:
    """Say what killed a run, or else return the last line of its log."""
    if code == -signal.SIGKILL:
        return "killed from outside, perhaps because the system was short of memory"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "its log is empty"
    return last if code > 0 else f"ended by {signal.Signals(-code).name}: {last}"
