"""Which run a command means, and the next command to suggest: shared by the commands that work on run folders."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gtpo_cli.run_folder import RunFolder

RUNS = Path("runs")  # where a run is looked for when none is named; recipes put them there unless output_dir says


def find_run(run: str | None, *, what: str) -> RunFolder:
    """The run folder named, or the latest one in runs/. `what` is the command line without it, for the message.

    Raises CheckpointError when there is none.
    """
    from gtpo_cli.errors import CheckpointError
    from gtpo_cli.run_folder import RunFolder, latest_run

    if run is None:
        latest = latest_run(RUNS)
        if latest is None:
            raise CheckpointError(
                f"{RUNS}/: there is no run here; name its folder: gtpo {what} FOLDER, or train one: gtpo train"
            )
        return latest
    folder = RunFolder(Path(run))
    if not folder.recipe_file.is_file():
        raise CheckpointError(
            f"{run}: is no run folder (recipe.yaml is missing); runs are in {RUNS}/ unless output_dir says"
        )
    return folder


def typed_checkpoint(text: str) -> str | int:
    """What --checkpoint says: a step where it is digits, else the word."""
    return int(text) if re.fullmatch("[0-9]{1,12}", text) else text


def suggest(*arguments: str | Path, comment: bool = False) -> None:
    """Print the command that comes next, as it can be typed here: the last line of every command.

    `comment`: as a YAML comment, below a recipe.
    """
    print(("# " if comment else "") + "next: " + shlex.join([_command(), *map(str, arguments)]))


def _command() -> str:
    """`gtpo` where the shell would find this program under that name, else the path by which it was called."""
    called = Path(sys.argv[0])
    found = shutil.which("gtpo")
    if called.name != "gtpo" or not called.exists() or (found and Path(found).samefile(called)):
        return "gtpo"
    return os.path.relpath(called) if called.resolve().is_relative_to(Path.cwd()) else str(called)
