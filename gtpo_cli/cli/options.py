"""What several commands are told in the same way: options, the run, the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from gtpo_cli.cli import completion
from gtpo_cli.cli.streams import keep_output_for_json
from gtpo_cli.errors import CheckpointError
from gtpo_cli.recipe import Recipe, build_recipe, load_recipe
from gtpo_cli.recipe.schema import PAPER_SYSTEM_PROMPT, Benchmark
from gtpo_cli.run_folder import RUNS, RunFolder, Trust, latest_run

if TYPE_CHECKING:
    from gtpo_cli.checkpoints import Checkpoint
    from gtpo_cli.planning.cards import Card
    from gtpo_cli.recipe.schema import ModelRecipe

DEFAULT_RECIPE = "tiny_arithmetic"


def _json_asked(ctx: typer.Context, value: bool) -> bool:
    if value and not ctx.resilient_parsing:  # that is a shell asking for completions
        keep_output_for_json()
    return value


def benchmark_names() -> list[str]:
    """For the shell to complete."""
    return list(get_args(Benchmark))


def _gpu_names() -> list[str]:
    """The same."""
    from gtpo_cli.planning.cards import CARDS

    return [card.short for card in CARDS]


RunArgument = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run folder (default: the latest run).", autocompletion=completion.runs),
]
TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN|MODEL",
        help="A run folder, builtin:tiny, a hub id or a model folder.",
        autocompletion=completion.runs,
    ),
]
CheckpointOption = Annotated[str, typer.Option(metavar="best|last|STEP", help="Which checkpoint of a run.")]
JsonOption = Annotated[
    bool, typer.Option("--json", callback=_json_asked, help="One JSON object on standard output, nothing else there.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run the code that comes with the model, where the run's recipe asks for that; without it such a run is "
        "refused.",
    ),
]
TrustRunOption = Annotated[
    bool,
    typer.Option(
        "--trust-run-code",
        help="Run the rewards and data.gold that the run's recipe names, also such as lie with runs or are installed.",
    ),
]
RecipeOption = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        "-r",
        metavar="FILE|NAME",
        help="A recipe file, or the name of a shipped one.",
        autocompletion=completion.recipes,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, e.g. --set objective.entropy_coef=0.01.",
        autocompletion=completion.overrides,
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="SIZE|NAME",
        help="Its memory, e.g. 24GiB, or its name, e.g. 4090 (default: this machine's, where it has one).",
        autocompletion=_gpu_names,
    ),
]


def as_typed(overrides: Sequence[str] | None) -> list[str]:
    """Overrides as options of the next command: --set for each."""
    return [part for override in overrides or [] for part in ("--set", override)]


def gpu_asked(text: str) -> Card | float:
    """What --gpu says: a card, or bytes."""
    from gtpo_cli.planning.cards import find_gpu

    try:
        return find_gpu(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--gpu") from None


def gpu_here() -> float | None:
    """Bytes of this machine's."""
    import torch

    return float(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def find_run(run: str | None, *, what: str) -> RunFolder:
    """The run folder named, or the latest one in runs/. `what` is the command line without it, for the message.

    Raises CheckpointError when there is none.
    """
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


def names_run(target: str | None) -> bool:
    """Whether RUN|MODEL is a run, the latest one where there is nothing; else it is a model."""
    return target is None or (Path(target) / "recipe.yaml").is_file() or Path(target).parent == RUNS


def find_checkpoint(run: RunFolder, which: str) -> Checkpoint:
    """best, last, or a step. Raises CheckpointError."""
    from gtpo_cli.checkpoints import choose_checkpoint, step_or_word

    return choose_checkpoint(run, step_or_word(which))


def base_words(model: ModelRecipe) -> str:
    """What the base of a run is: its model, or what that was when the run started."""
    return f"{model.before_training}, {'untrained' if model.start is None else 'as the run began'}"


def find_trained(
    target: str | None, which: str | None, *, what: str, overrides: Sequence[str] = (), trust: Trust
) -> tuple[RunFolder, Recipe, Checkpoint | None]:
    """The run, its recipe, and its checkpoint: best, last or a step; None is asked for as None, and found where the
    folder is that of an untrained model that was evaluated. Raises CheckpointError, RecipeError."""
    run = find_run(target, what=what)
    recipe = run.recipe_to_run(overrides, trust=trust)
    untrained = not run.metrics_file.exists() and not run.checkpoints.exists()
    return run, recipe, None if untrained or which is None else find_checkpoint(run, which)


def find_model(
    model: str, *, recipe: str | None = None, benchmark: str = "gsm8k", overrides: Sequence[str] = ()
) -> tuple[Recipe, Checkpoint | None, str]:
    """What to ask that is no run: the recipe by which it is asked, a checkpoint where it is an exported adapter, and in
    words what it is and whose prompt it gets. `benchmark`: for a model that nothing is known of.

    Raises RecipeError, ExportError.
    """
    from gtpo_cli.export.conditions import read_export

    if recipe is not None:
        loaded = load_recipe(recipe, [f"model.name={json.dumps(model)}", "model.start=null", *overrides])
        return loaded, None, f"{model}: asked as the recipe {recipe} says"
    if (export := read_export(Path(model), overrides)) is not None:
        on = f", an adapter on {export.recipe.model.name}" if export.checkpoint else ""
        words = f"{model}: export of the run {export.run}, step {export.step}{on}; asked and judged as the run was"
        return export.recipe, export.checkpoint, words
    loaded = plain_recipe(model, benchmark, overrides)
    known = {None: "no system prompt", PAPER_SYSTEM_PROMPT: "gtpo's default system prompt"}
    prompt = known.get(loaded.data.system_prompt, "your system prompt")
    return loaded, None, f"{model}: no export of gtpo, so it is asked with {prompt}, in the model's own chat template"


def plain_recipe(model: str, benchmark: str = "gsm8k", overrides: Sequence[str] = ()) -> Recipe:
    """By which a model is asked that nothing is known of. Raises RecipeError."""
    plain = {"name": model, "load_in_4bit": False, "lora": None}
    return build_recipe({"model": plain, "data": {"benchmark": benchmark}}, overrides, where=model)
