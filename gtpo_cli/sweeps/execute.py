"""Running what is missing of a sweep: one process a run, a few at a time; what is done is never run again.

A run counts as done when its process ended well; `<folder>/done/<key>.json` says so, with the seconds it took.
Everything else is started, or continued from its newest checkpoint. A run's recipe must be the one in its folder.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from gtpo_cli.errors import RecipeError, Terminated
from gtpo_cli.files import Finite, own_folder, read_json, write_aside
from gtpo_cli.recipe import dump_recipe
from gtpo_cli.recipe.schema import OPEN
from gtpo_cli.recipe.section import recipe_differences
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.sweeps.processes import Process, start_training
from gtpo_cli.sweeps.spec import Sweep, SweepRun
from gtpo_cli.training.interrupts import interrupt_flag

_STOPPED_BY_GUARD = 3  # exit code of gtpo train: that too is an outcome
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _Job:
    run: SweepRun
    process: Process
    started: float


@dataclass(frozen=True, slots=True)
class _Done:
    seconds: Finite


def seconds_of(run: SweepRun) -> float:
    """Wall-clock seconds of a finished run, from its last start."""
    file = run.done_file
    return read_json(file, _Done, lambda why: RecipeError(f"{file}: cannot be read ({why}); delete it")).seconds


def seconds_left(sweep: Sweep, *, jobs: int) -> float | None:
    """For the runs that are missing, by the mean of those that are done, else by the file's `seconds`; None unknown."""
    taken = [seconds_of(run) for run in sweep.runs if run.is_done]
    each = fmean(taken) if taken else sweep.file.seconds
    return None if each is None else each * (len(sweep.runs) - sweep.done) / jobs


def check_what_is_there(sweep: Sweep) -> None:
    """Raise RecipeError where a run's folder holds another recipe: the sweep's file was changed since."""
    for run in sweep.runs:
        folder = RunFolder(run.path)
        found = recipe_differences([folder.recipe(), run.recipe]) if folder.recipe_file.is_file() else []
        different = [key for key, (_, asked) in found if not (key in OPEN and asked == "auto")]
        if different:
            raise RecipeError(
                f"{run.path}: was run with another {', '.join(different)}; name another folder with "
                "--out, or delete this run"
            )


def execute(
    sweep: Sweep, *, jobs: int, progress: Callable[[int, int], None]
) -> tuple[list[tuple[SweepRun, int]], Terminated | None]:
    """Run what is missing, at most `jobs` at a time; `progress` gets the runs that are done, and all. Returns the runs
    whose process ended badly, with its exit code, and the signal that ended the sweep.

    Ctrl-C, SIGTERM or SIGHUP lets the runs save and ends; one that comes while they do so ends at once. Raises
    RecipeError when what is there does not belong to this sweep.
    """
    check_what_is_there(sweep)
    for name in ("done", "logs", "recipes", "runs", "charts"):
        own_folder(sweep.folder / name)
    waiting = [run for run in sweep.runs if not run.is_done]
    running: list[_Job] = []
    failed: list[tuple[SweepRun, int]] = []
    progress(sweep.done, len(sweep.runs))
    try:
        with interrupt_flag() as signals:
            while (waiting or running) and not signals:
                while waiting and len(running) < jobs:
                    running.append(_start(sweep, waiting.pop(0)))
                for job in list(running):
                    if (code := job.process.poll()) is None:
                        continue
                    running.remove(job)
                    if code in (0, _STOPPED_BY_GUARD):
                        _mark_done(job, code)
                        progress(sweep.done, len(sweep.runs))
                    else:
                        failed.append((job.run, code))
                time.sleep(_POLL_SECONDS)
        for job in running:
            job.process.send_signal(signal.SIGTERM)  # a second Ctrl-C would end what a supervisor has told already
        while any(job.process.poll() is None for job in running):
            time.sleep(_POLL_SECONDS)
    finally:  # they have ended, unless the sweep ends at once
        for job in running:
            job.process.send_signal(signal.SIGKILL)
    return failed, Terminated(signals[0]) if signals else None


def _start(sweep: Sweep, run: SweepRun) -> _Job:
    """`gtpo train` of the run's recipe; from its newest checkpoint where its folder is there."""
    recipe = sweep.folder / "recipes" / f"{run.key}.yaml"
    write_aside(recipe, dump_recipe(run.recipe))
    arguments = ["--quiet"]
    # The run's recipe is the sweep's, as was checked: what it names is the user's word.
    goes_on = ["--resume", str(run.path), "--trust-run-code"]
    arguments += goes_on if RunFolder(run.path).recipe_file.is_file() else ["--recipe", str(recipe)]
    if run.recipe.model.trust_remote_code:  # the sweep's own recipe says so
        arguments.append("--trust-remote-code")
    return _Job(run, start_training(arguments, run.log_file), time.monotonic())


def _mark_done(job: _Job, code: int) -> None:
    record = {"seconds": round(time.monotonic() - job.started, 1), "exit": code}
    write_aside(job.run.done_file, json.dumps(record) + "\n")
