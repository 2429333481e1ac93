"""What several commands are told in the same way: options, the run, the checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gtpo_cli.run_folder import RunFolder

RUNS = Path("runs")  # where a run is looked for when none is named; recipes put them there unless output_dir says

TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run the code that comes with the model, where the run's recipe asks for that; without it such a run is "
        "refused.",
    ),
]
RecipeOption = Annotated[
    str | None,
    typer.Option("--recipe", "-r", metavar="FILE|NAME", help="A recipe file, or the name of a shipped one."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. --set objective.entropy_coef=0.01."),
]


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
