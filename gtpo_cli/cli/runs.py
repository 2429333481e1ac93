"""gtpo runs"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from gtpo_cli.cli.printing import print_table, suggest
from gtpo_cli.errors import GtpoError
from gtpo_cli.runs.folder import RECIPE_FILE, RUNS, RunFolder, last_touched
from gtpo_cli.terminal.signals import duration
from gtpo_cli.text import one_line


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of runs.")] = RUNS,
) -> None:
    """List the runs in a folder, newest first: name, method, steps, accuracy, age.

    The accuracy is that of the last checkpoint that gtpo eval measured, or else the mean of the last 20 training steps.
    """
    found = [RunFolder(file.parent) for file in folder.glob(f"*/{RECIPE_FILE}")]
    if not found:
        print(f"{folder}: there is no run here")
        suggest("train")
        return
    found.sort(key=last_touched, reverse=True)
    damaged: list[str] = []
    print_table(("run", "method", "steps", "accuracy", "age"), [_row(run, damaged) for run in found], numbers=[2, 4])
    for line in damaged:
        print(line)
    suggest("report", found[0].path)


def _row(run: RunFolder, damaged: list[str]) -> list[str]:
    """Describe a run; one that cannot be read is named, and its reason is added to `damaged`."""
    age = duration(max(0.0, time.time() - last_touched(run)))
    try:
        method, steps, accuracy = _facts(run)
    except GtpoError as error:
        damaged.append(f"damaged: {one_line(str(error))}")
        return [run.name, "damaged", "", "", age]
    return [run.name, method, steps, accuracy, age]


def _facts(run: RunFolder) -> tuple[str, str, str]:
    from gtpo_cli.evaluation.store import largest_evaluations
    from gtpo_cli.tracking import read_metrics

    recipe = run.recipe()
    rows = read_metrics(run.metrics_file) if os.path.lexists(run.metrics_file) else []
    total = run.environment().total_steps
    steps = f"{int(rows[-1]['step']) if rows else 0}" + (f" of {total}" if total else "")
    evaluations = {stored.conditions.subject: stored for stored in largest_evaluations(run)}
    if evaluations:
        subject = max(evaluations)  # the last step; "base" comes before
        score = evaluations[subject].results().scores["accuracy"].interval.estimate
        accuracy = f"{100 * score:.1f} % ({evaluations[subject].conditions.benchmark} {subject})"
    else:
        known = [row["train/accuracy_rate"] for row in rows[-20:] if "train/accuracy_rate" in row]
        accuracy = f"{100 * sum(known) / len(known):.1f} % in training" if known else ""
    return recipe.objective.name.upper(), steps, accuracy
