"""Options that several commands share, and how a recipe is chosen from them."""

from __future__ import annotations

from typing import Annotated

import typer

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
