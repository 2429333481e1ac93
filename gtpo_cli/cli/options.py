"""Options that several commands share, and how they find runs, checkpoints and models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gtpo_cli.errors import CheckpointError, ModelError, RecipeError
from gtpo_cli.recipe import Recipe, build_recipe, load_recipe, shipped_recipes
from gtpo_cli.recipe.data import KNOWN, PAPER_SYSTEM_PROMPT, PRESETS
from gtpo_cli.runs.folder import RECIPE_FILE, RUNS, RunFolder, Trust, latest_run
from gtpo_cli.terminal.streams import keep_output_for_json

if TYPE_CHECKING:
    from gtpo_cli.machine.installed import Card
    from gtpo_cli.recipe.schema import ModelRecipe
    from gtpo_cli.runs.checkpoints import Checkpoint


def complete_recipes(incomplete: str) -> list[str]:
    """Complete shipped recipes and YAML files."""
    files = [path for path in _siblings(incomplete) if path.endswith((".yaml", ".yml"))]
    return [name for name in (*shipped_recipes(), *files) if name.startswith(incomplete)]


def complete_runs(incomplete: str) -> list[str]:
    """Complete runs in the typed folder and in runs/."""
    found = {path for start in (incomplete, f"{RUNS}/") for path in _siblings(start)}
    return sorted(path for path in found if path.startswith(incomplete) and Path(path, RECIPE_FILE).is_file())


def _siblings(typed: str) -> list[str]:
    """List the paths in the folder of a partly typed path, spelled as typed."""
    folder = typed[: typed.rfind("/") + 1]
    with suppress(OSError):
        return sorted(folder + path.name for path in Path(folder or ".").iterdir() if not path.name.startswith("."))
    return []


DEFAULT_RECIPE = "tiny_arithmetic"
TASKS_RECIPE = "tiny_tasks"  # of the built-in model that knows some tasks


def _on_json(ctx: typer.Context, value: bool) -> bool:
    if value and not ctx.resilient_parsing:  # set while a shell asks for completions
        keep_output_for_json()
    return value


def benchmark_names() -> list[str]:
    """List the benchmarks, for shell completion."""
    return list(KNOWN)


def _gpu_names() -> list[str]:
    """List the GPUs' short names, for shell completion."""
    from gtpo_cli.machine.installed import CARDS

    return [card.short for card in CARDS]


RunArgument = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run folder (default: the latest run).", autocompletion=complete_runs),
]
TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN|MODEL",
        help="A run folder, builtin:tiny, a hub id, or the folder of a model or an adapter.",
        autocompletion=complete_runs,
    ),
]
CheckpointOption = Annotated[str, typer.Option(metavar="best|last|STEP", help="Which checkpoint of a run.")]
JsonOption = Annotated[
    bool, typer.Option("--json", callback=_on_json, help="Print one JSON object to standard output, and nothing else.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run the code that comes with the model if the run's recipe asks for it; without this option such a run "
        "is refused.",
    ),
]
TrustRunOption = Annotated[
    bool,
    typer.Option(
        "--trust-run-code",
        help="Run the rewards and data.gold that the run's recipe names, even from run folders or installed packages.",
    ),
]
RecipeOption = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        "-r",
        metavar="FILE|NAME",
        help="A recipe file, or the name of a shipped one.",
        autocompletion=complete_recipes,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, e.g. --set objective.entropy_coef=0.01.",
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="SIZE|NAME",
        help="The GPU's memory, e.g. 24GiB, or its name, e.g. 4090 (default: this machine's GPU, if it has one).",
        autocompletion=_gpu_names,
    ),
]


def as_typed(overrides: Sequence[str] | None) -> list[str]:
    """Turn overrides into options of the next command, --set for each."""
    return [part for override in overrides or [] for part in ("--set", override)]


def parse_gpu(text: str) -> Card | float:
    """Parse --gpu: a card, or bytes."""
    from gtpo_cli.machine.installed import find_gpu

    try:
        return find_gpu(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--gpu") from None


def find_run(run: str | None, *, what: str) -> RunFolder:
    """Return the named run folder, or the latest one in runs/. `what` is the command, for the error message.

    Raises CheckpointError if there is none.
    """
    if run is None:
        latest = latest_run(RUNS)
        if latest is None:
            raise CheckpointError(
                f"{RUNS}/: there is no run here; name a run folder: gtpo {what} FOLDER, or train one: gtpo train"
            )
        return latest
    folder = RunFolder(Path(run))
    if not folder.recipe_file.is_file():
        raise CheckpointError(
            f"{run}: is not a run folder (recipe.yaml is missing); runs are in {RUNS}/ unless output_dir differs"
        )
    return folder


def names_run(target: str | None) -> bool:
    """Whether RUN|MODEL names a run, not a model. Without it, the latest run is meant."""
    return target is None or (Path(target) / "recipe.yaml").is_file() or Path(target).parent == RUNS


def find_checkpoint(run: RunFolder, which: str) -> Checkpoint:
    """Find a checkpoint by `best`, `last` or a step. Raises CheckpointError."""
    from gtpo_cli.runs.checkpoints import choose_checkpoint, step_or_word

    return choose_checkpoint(run, step_or_word(which))


def base_words(model: ModelRecipe) -> str:
    """Describe the base of a run: its model, as it was when the run started."""
    return f"{model.before_training}, {'untrained' if model.start is None else 'as the run began'}"


def find_trained(
    target: str | None, which: str | None, *, what: str, overrides: Sequence[str] = (), trust: Trust
) -> tuple[RunFolder, Recipe, Checkpoint | None]:
    """Return the run, its recipe, and its checkpoint: best, last or a step.

    The checkpoint is None if `which` is None, or if the folder is of an untrained model that was evaluated. Raises
    CheckpointError, RecipeError."""
    run = find_run(target, what=what)
    recipe = run.recipe_to_run(overrides, trust=trust)
    untrained = not run.metrics_file.exists() and not run.checkpoints.exists()
    return run, recipe, None if untrained or which is None else find_checkpoint(run, which)


def find_model(
    model: str,
    *,
    recipe: str | None = None,
    benchmark: str | None = "gsm8k",
    data_path: Path | None = None,
    overrides: Sequence[str] = (),
) -> tuple[Recipe, Checkpoint | None, str]:
    """Return a recipe for a model that is no run, a checkpoint if it is an adapter, and words for the user about the
    model and its prompt. `benchmark` and `data_path` are for a model that is not an export of gtpo, and one of them
    must be there.

    Raises RecipeError, ExportError, ModelError.
    """
    from gtpo_cli.tools.export.folder import read_export

    if recipe is not None:
        own, adapter = _of_folder(model)
        loaded = load_recipe(recipe, [*own, *overrides])
        on = f"an adapter on {loaded.model.name}; " if adapter else ""
        return loaded, adapter, f"{model}: {on}with the prompts of the recipe {recipe}"
    if (export := read_export(Path(model), overrides)) is not None:
        on = f", an adapter on {export.recipe.model.name}" if export.checkpoint else ""
        words = f"{model}: export of the run {export.run}, step {export.step}{on}; with the run's prompts and rewards"
        if data_path is not None and not export.has_problems:
            words += (
                f"; if it was trained on {data_path}, name the run's recipe.yaml with --recipe: that asks only what "
                "the run held out, and reads gold answers as it did"
            )
        return export.recipe, export.checkpoint, words
    own, adapter = _of_folder(model)
    overrides = [*own, *overrides]
    if benchmark is None and data_path is not None:
        benchmark, overrides = "local", [f"data.path={json.dumps(str(data_path))}", *overrides]
    elif benchmark is None:
        from gtpo_cli.policy.loading import load_config
        from gtpo_cli.policy.tiny import resolve_name

        if adapter is None:  # does the name lead nowhere?
            load_config(plain_recipe(model, overrides=overrides).model, resolve_name(model))
        raise RecipeError(
            f"{model}: is no run and no export of gtpo, so it has no problems of its own; name some: --benchmark gsm8k "
            "(or math500, aime24, ...), or --data-path FILE"
        )
    loaded = plain_recipe(model, benchmark, overrides)
    if adapter is not None and loaded.model.name == model:
        raise ModelError(
            f"{Path(model) / 'adapter_config.json'}: names no base model; write it there (base_model_name_or_path), or "
            "name it with --set model.name=BASE (gtpo eval)"
        )
    known: dict[str | None, str] = {text: f"the system prompt {name}" for name, text in PRESETS.items() if text}
    known |= {None: "no system prompt", PAPER_SYSTEM_PROMPT: "gtpo's default system prompt"}
    prompt = known.get(loaded.data.system_prompt, "your system prompt")
    on, whose = "", "the model's own"
    if adapter is not None:
        from gtpo_cli.policy.loading import has_tokenizer

        on = f"an adapter on {loaded.model.name}; "
        whose = "its own" if has_tokenizer(adapter.model) else "the base's"
    words = f"{model}: {on}not an export of gtpo, so it gets {prompt}, in {whose} chat template"
    return loaded, adapter, words


def _of_folder(model: str) -> tuple[list[str], Checkpoint | None]:
    """Return the overrides with which a recipe has a model that is no run, and its checkpoint if it is an adapter.

    Raises ModelError for an adapter that is more than plain LoRA.
    """
    from gtpo_cli.policy.adapter_config import is_adapter

    folder = Path(model)
    if not is_adapter(folder):
        return [f"model.name={json.dumps(model)}", "model.start=null"], None
    from gtpo_cli.runs.checkpoints import Checkpoint
    from gtpo_cli.training.start import find_start

    here = folder.resolve()
    return [*find_start(model).overrides(), "model.start=null"], Checkpoint(0, here.parent, weights=here.name)


def plain_recipe(model: str, benchmark: str = "gsm8k", overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe for a model that is neither a run nor an export of gtpo. Raises RecipeError."""
    plain = {"name": model, "load_in_4bit": False, "lora": None}
    return build_recipe({"model": plain, "data": {"benchmark": benchmark}}, overrides, where=model)
