"""Running what is missing of a sweep: one process a run, a few at a time; what is done is never run again.

A run counts as done when its process ended well; `<folder>/done/<key>.json` says so, with the seconds it took.
Everything else is started, or continued from its newest checkpoint. A run's recipe must be the one in its folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from gtpo_cli.errors import Ended, RecipeError
from gtpo_cli.files import Finite, read_json
from gtpo_cli.recipe import Recipe, dump_recipe
from gtpo_cli.run_folder import RunFolder, write_atomically
from gtpo_cli.sweeps.spec import Sweep, SweepRun
from gtpo_cli.training.interrupts import ending_signals, raise_ended, say_at_once

_STOPPED_BY_GUARD = 3  # exit code of gtpo train: that too is an outcome
_POLL_SECONDS = 0.2
_IGNORED = ("run_name", "output_dir")  # where a run lies is not what it is


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sweep stands. `failed`: key and log of each run whose process ended badly; `ended`: by which signal."""

    done: int
    total: int
    failed: tuple[tuple[str, Path], ...]
    ended: Ended | None


@dataclass(slots=True)
class _Job:
    run: SweepRun
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class _Done:
    seconds: Finite


def done_file(sweep: Sweep, run: SweepRun) -> Path:
    return sweep.folder / "done" / f"{run.key}.json"


def log_file(sweep: Sweep, run: SweepRun) -> Path:
    return sweep.folder / "logs" / f"{run.key}.log"


def is_done(sweep: Sweep, run: SweepRun) -> bool:
    return done_file(sweep, run).is_file()


def seconds_of(sweep: Sweep, run: SweepRun) -> float:
    """Wall-clock seconds of a finished run, from its last start."""
    file = done_file(sweep, run)
    return read_json(file, _Done, lambda why: RecipeError(f"{file}: cannot be read ({why}); delete it")).seconds


def seconds_left(sweep: Sweep, *, jobs: int) -> float | None:
    """For the runs that are missing, by the mean of those that are done, else by the file's `seconds`; None unknown."""
    taken = [seconds_of(sweep, run) for run in sweep.runs if is_done(sweep, run)]
    each = fmean(taken) if taken else sweep.file.seconds
    missing = sum(not is_done(sweep, run) for run in sweep.runs)
    return None if each is None else each * missing / jobs


def check_what_is_there(sweep: Sweep) -> None:
    """Raise RecipeError where a run's folder holds another recipe: the sweep's file was changed since."""
    for run in sweep.runs:
        folder = RunFolder(run.path)
        if folder.recipe_file.is_file():
            different = _differences(folder.recipe(), run.recipe)
            if different:
                raise RecipeError(
                    f"{run.path}: was run with another {', '.join(different)}; name another folder with --out, or "
                    "delete this run"
                )


def execute(sweep: Sweep, *, jobs: int, tell: Callable[[str, SweepRun], None]) -> Outcome:
    """Run what is missing, at most `jobs` at a time.

    `tell` gets "start", "done", "failed" with the run. Ctrl-C, SIGTERM or SIGHUP lets the runs save and ends; one that
    comes while they do so ends at once. Raises RecipeError when what is there does not belong to this sweep.
    """
    check_what_is_there(sweep)
    for name in ("done", "logs", "recipes"):
        (sweep.folder / name).mkdir(parents=True, exist_ok=True)
    waiting = [run for run in sweep.runs if not is_done(sweep, run)]
    running: list[_Job] = []
    failed: list[tuple[str, Path]] = []
    try:
        with _interrupts():
            while waiting or running:
                while waiting and len(running) < jobs:
                    run = waiting.pop(0)
                    running.append(_Job(run, _start(sweep, run)))
                    tell("start", run)
                for job in [job for job in running if job.process.poll() is not None]:
                    running.remove(job)
                    if job.process.returncode in (0, _STOPPED_BY_GUARD):
                        _mark_done(sweep, job)
                        tell("done", job.run)
                    else:
                        failed.append((job.run.key, log_file(sweep, job.run)))
                        tell("failed", job.run)
                time.sleep(_POLL_SECONDS)
    except Ended as end:
        say_at_once(
            f"{end.words}: the runs finish the steps under way and save; Ctrl-C ends them at once, and what came after "
            "their last checkpoints is lost"
        )
        _let_save(running)
        return _outcome(sweep, failed, end)
    return _outcome(sweep, failed, None)


@contextmanager
def _interrupts() -> Iterator[None]:
    """Ended is raised, by SIGINT as well: a shell that starts a sweep in the background has it ignored."""
    before = {number: signal.signal(number, raise_ended) for number in (signal.SIGINT, *ending_signals())}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(sweep: Sweep, run: SweepRun) -> subprocess.Popen[bytes]:
    """`gtpo train` of the run's recipe; from its newest checkpoint where its folder is there."""
    recipe = sweep.folder / "recipes" / f"{run.key}.yaml"
    write_atomically(recipe, dump_recipe(run.recipe))
    command = [sys.executable, "-m", "gtpo_cli", "train", "--quiet"]
    command += ["--resume", str(run.path)] if RunFolder(run.path).recipe_file.is_file() else ["--recipe", str(recipe)]
    if run.recipe.model.trust_remote_code:  # the sweep's own recipe says so
        command.append("--trust-remote-code")
    with log_file(sweep, run).open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent
        )


def _die_with_parent() -> None:
    """Where the sweep is killed, its runs end too (Linux): two processes must never write one run folder.

    A session of its own keeps the terminal's Ctrl-C away: the sweep passes it on, once.
    """
    os.setsid()
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _let_save(running: list[_Job]) -> None:
    for job in running:
        job.process.send_signal(signal.SIGINT)
    for job in running:
        job.process.wait()


def _mark_done(sweep: Sweep, job: _Job) -> None:
    record = {"seconds": round(time.monotonic() - job.started, 1), "exit": job.process.returncode}
    write_atomically(done_file(sweep, job.run), json.dumps(record) + "\n")


def _outcome(sweep: Sweep, failed: list[tuple[str, Path]], ended: Ended | None) -> Outcome:
    done = sum(is_done(sweep, run) for run in sweep.runs)
    return Outcome(done, len(sweep.runs), tuple(failed), ended)


def _differences(first: Recipe, second: Recipe) -> list[str]:
    """Dotted keys whose values differ."""
    return _different_keys(first.model_dump(), second.model_dump(), "")


def _different_keys(first: object, second: object, prefix: str) -> list[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        keys = [key for key in first if key not in _IGNORED or prefix]
        return [name for key in keys for name in _different_keys(first[key], second.get(key), f"{prefix}.{key}")]
    return [] if first == second else [prefix.removeprefix(".")]
