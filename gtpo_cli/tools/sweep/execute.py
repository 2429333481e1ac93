"""Run the unfinished runs of a sweep, one process per run and a few at a time. Finished runs are not repeated.

A run is done when its process succeeded; `<folder>/done/<key>.json` records that with the seconds it took. Other runs
are started, or continued from their newest checkpoint. A run's recipe must equal the one in its folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gtpo_cli.errors import GtpoError, RecipeError, Terminated
from gtpo_cli.machine.ready import check_recipe
from gtpo_cli.recipe import dump_recipe
from gtpo_cli.recipe.data import is_task
from gtpo_cli.recipe.schema import CHANGES_NO_STEP, OPEN
from gtpo_cli.recipe.section import recipe_differences
from gtpo_cli.runs.files import Finite, append_to, own_folder, read_json, write_aside
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.runs.user_code import code_digest
from gtpo_cli.terminal.signals import interrupt_flag
from gtpo_cli.tools.sweep.spec import Sweep, SweepRun
from gtpo_cli.types import CodeName

_STOPPED = 3  # exit code of gtpo train for a run that stopped itself, which counts as a result
_SET_PARENT_DEATH_SIGNAL = 1
_PRCTL = ctypes.CDLL(None).prctl  # found before any fork: loading a library after one can wait for ever
_POLL_SECONDS = 0.2
_TELL_SECONDS = 2.0
_DECIDE_DATA = {"model", "data", "rollout", "rewards"}  # sections on which the problems of a run depend


@dataclass(frozen=True, slots=True)
class _Job:
    run: SweepRun
    process: subprocess.Popen[bytes]
    started: float


@dataclass(frozen=True, slots=True)
class Done:
    """How a run ended: the wall-clock seconds since its last start, and its exit code."""

    seconds: Finite
    exit: int

    @property
    def stopped(self) -> bool:
        """Whether it ended before its last step: by the guard, or because steps made no update."""
        return self.exit == _STOPPED


def end_of(run: SweepRun) -> Done:
    """Return how a finished run ended. Raises RecipeError."""
    file = run.done_file
    return read_json(file, Done, lambda why: RecipeError(f"{file}: cannot be read ({why}); delete it"))


def seconds_left(sweep: Sweep, *, jobs: int) -> float | None:
    """Estimate the time of unfinished runs from finished ones, or else from the file's `seconds`; None if unknown."""
    taken = [end_of(run).seconds for run in sweep.known if run.is_done]
    each = fmean(taken) if taken else sweep.file.seconds
    return None if each is None else each * (sweep.number - sweep.done) / jobs


def check(sweep: Sweep) -> None:
    """Check each variant as `gtpo recipes check` does, and the folders of the runs.

    Raises GtpoError, also if a folder holds another recipe, because the sweep's file was changed, or if its run had
    other code of the user's own, or other data than the sweep's other runs; or if what its variant leaves open, such as
    the type of the weights, was decided otherwise for another of its runs.
    """
    variants = {run.variant: run.recipe for run in sweep.known}
    for variant, recipe in variants.items():
        try:
            check_recipe(recipe)
        except GtpoError as error:
            raise type(error)(f"variant {variant}: {error}") from error
    data, opened = dict[str, list[str]](), dict[tuple[str, str], Any]()
    for run in sweep.known:
        folder = RunFolder(run.path)
        found = recipe_differences([folder.recipe(), run.recipe]) if folder.recipe_file.is_file() else []
        different = [
            key
            for key, (was, value) in found
            if not (key in OPEN and value == "auto")
            or (key not in CHANGES_NO_STEP and opened.setdefault((run.variant, key), was) != was)
        ]
        began = folder.beginning()
        for name, digest in began.code.items() if began else ():
            if run.is_done and code_digest(CodeName(name)) != digest:
                different.append(name)
        made = any(is_task(source.benchmark) for source in run.recipe.data.sources)  # from the seed
        problems = sorted(began.digests) if began else []  # the seed may decide their order
        if (
            began
            and not made
            and data.setdefault(run.recipe.model_dump_json(include=_DECIDE_DATA), problems) != problems
        ):
            different.append("data (its files have changed)")
        if different:
            raise RecipeError(
                f"{run.path}: was run with another {', '.join(different)}; name another folder with "
                "--out, or delete this run"
            )


def execute(
    sweep: Sweep, *, jobs: int, progress: Callable[[int, int, str], None]
) -> tuple[list[tuple[SweepRun, int]], Terminated | None]:
    """Execute the unfinished runs that are known, at most `jobs` at a time.

    `progress` gets the numbers of finished and of all runs, and the steps of those that run. Returns the runs that
    failed with their exit codes, and the signal that ended the sweep.

    Ctrl-C, SIGTERM or SIGHUP lets the runs save before the sweep ends; a second one ends it at once. Raises GtpoError
    as `check` does.
    """
    check(sweep)
    for name in ("done", "logs", "recipes", "runs", "charts"):
        own_folder(sweep.folder / name)
    waiting = [run for run in sweep.known if not run.is_done]
    running: list[_Job] = []
    failed: list[tuple[SweepRun, int]] = []
    progress(sweep.done, sweep.number, "")
    told = time.monotonic()
    try:
        with interrupt_flag() as signals:
            while (waiting or running) and not signals:
                while waiting and len(running) < jobs:
                    running.append(_start(sweep, waiting.pop(0)))
                for job in list(running):
                    if (code := job.process.poll()) is None:
                        continue
                    running.remove(job)
                    if code in (0, _STOPPED):
                        _mark_done(job, code)
                        progress(sweep.done, sweep.number, "")
                    else:
                        failed.append((job.run, code))
                time.sleep(_POLL_SECONDS)
                if time.monotonic() - told > _TELL_SECONDS:
                    told = time.monotonic()
                    progress(sweep.done, sweep.number, ", ".join(_step_words(job.run) for job in running))
        for job in running:
            job.process.send_signal(signal.SIGTERM)  # SIGINT twice would stop a run without saving
        while any(job.process.poll() is None for job in running):
            time.sleep(_POLL_SECONDS)
    finally:  # only a sweep that ends at once still has running processes
        for job in running:
            job.process.send_signal(signal.SIGKILL)
    return failed, Terminated(signals[0]) if signals else None


def _start(sweep: Sweep, run: SweepRun) -> _Job:
    """Start `gtpo train` with the run's recipe, or resume the run if its folder exists."""
    recipe = sweep.folder / "recipes" / f"{run.key}.yaml"
    write_aside(recipe, dump_recipe(run.recipe))
    arguments = ["--quiet"]
    # The run's recipe was checked to be the sweep's, so the user trusts the code that it names.
    resume = ["--resume", str(run.path), "--trust-run-code"]
    arguments += resume if RunFolder(run.path).recipe_file.is_file() else ["--recipe", str(recipe)]
    if run.recipe.model.trust_remote_code:
        arguments.append("--trust-remote-code")
    command = [sys.executable, "-P", "-m", "gtpo_cli", "train", *arguments]
    with append_to(run.log_file) as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent
        )
    return _Job(run, process, time.monotonic())


def _end_with_parent() -> None:
    """End this process with its parent (Linux), because two processes must never write one run folder.

    A new session keeps the terminal's Ctrl-C away, so that runs get only the sweep's signal.
    """
    os.setsid()
    if sys.platform == "linux":
        _PRCTL(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _step_words(run: SweepRun) -> str:
    folder = RunFolder(run.path)
    with suppress(OSError):
        step, total = folder.metrics_file.read_bytes().count(b"\n"), folder.environment().total_steps
        return f"{run.key} step {step}" + (f" of {total}" if total else "")
    return f"{run.key} begins"


def _mark_done(job: _Job, code: int) -> None:
    record = {"seconds": round(time.monotonic() - job.started, 1), "exit": code}
    write_aside(job.run.done_file, json.dumps(record) + "\n")
