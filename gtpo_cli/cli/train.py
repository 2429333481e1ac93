"""gtpo train"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gtpo_cli.cli.options import (
    DEFAULT_RECIPE,
    QuietOption,
    RecipeOption,
    SetOption,
    TrustOption,
    TrustRunOption,
    as_typed,
    find_run,
)
from gtpo_cli.cli.printing import say, suggest
from gtpo_cli.cli.streams import output_is_extra
from gtpo_cli.errors import WORDS, NotReadyError, RecipeError
from gtpo_cli.recipe import Recipe, dump_recipe, find_recipe, load_recipe
from gtpo_cli.run_folder import RunFolder, Trust

if TYPE_CHECKING:
    from gtpo_cli.training.run import Run

# Exit codes of a run that stopped before its last step, saved: by a signal (130 Ctrl-C, 143 SIGTERM, 129 SIGHUP), by
# itself.
EXITS = {word: 128 + number for number, word in WORDS.items()}
EXIT_STOPPED = 3
# What may change of a run that is resumed: its end, and what changes no step by more than rounding.
ENDS = ("training.max_steps", "training.epochs")
CHANGES_NO_STEP = (
    "training.save_every", "training.keep_last", "training.guard.action", "training.max_bad_steps",
    "training.micro_batch_size", "training.stress_step", "training.threads", "model.gradient_checkpointing",
    "rollout.gpu_memory_utilization", "tracking.log_completions_every",
)  # fmt: skip


def train(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="With --resume: the run to continue (default: the latest).")
    ] = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN[:best|last|STEP]",
            help="Start a new run from another's checkpoint (or an adapter's folder): its weights, nothing else. "
            "Without --recipe by that run's own.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue a run; with --set training.max_steps=N up to step N."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe, prompts and steps, and stop.")
    ] = False,
    quiet: QuietOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="Start even where this machine seems to lack something (gtpo doctor).")
    ] = False,
    engine: Annotated[
        Literal["gtpo", "trl"] | None,
        typer.Option("--engine", help="Whose trainer: gtpo's own, or TRL's, for several GPUs (docs/trl.md)."),
    ] = None,
    trl: Annotated[
        list[str] | None,
        typer.Option("--trl", metavar="NAME=VALUE", help="With --engine trl: a GRPOConfig setting; repeatable."),
    ] = None,
    trust_remote_code: TrustOption = False,
    trust_run_code: TrustRunOption = False,
) -> None:
    """Train a model as a recipe says; without one, the built-in model on arithmetic.

    gtpo train --recipe tiny_arithmetic

    gtpo train --recipe llama8b_gsm8k.yaml --set rollout.group_size=12

    gtpo train --resume runs/my-run

    gtpo train --resume runs/my-run --set training.max_steps=2000

    gtpo train --from runs/my-sft --recipe llama8b_gsm8k

    accelerate launch --num_processes 4 -m gtpo_cli train --recipe llama8b_gsm8k --engine trl
    """
    if resume and recipe is not None:
        raise typer.BadParameter("a resumed run keeps its recipe; leave --recipe out")
    if resume and dry_run:
        raise typer.BadParameter(
            "--dry-run is about a new run; gtpo recipes show RUN/recipe.yaml shows what this one is"
        )
    if resume and from_ is not None:
        raise typer.BadParameter("--from starts a new run, --resume goes on with an old one; leave one of them out")
    if run is not None and not resume and "=" in run:
        raise typer.BadParameter(f"unexpected argument {run}; did you mean --set {run}?")
    if run is not None and not resume:
        raise typer.BadParameter(f"unexpected argument {run}; did you mean --recipe {run}, or --resume {run}?")
    if resume:
        folder = find_run(run, what="train --resume")
        loaded = folder.recipe_to_run(set_ or [], trust=Trust(trust_remote_code, trust_run_code))
        if set_:
            _check_extends(folder.recipe(), loaded)
    else:
        loaded = _new(recipe, set_ or [], from_, trust=Trust(trust_remote_code, trust_run_code))
        if dry_run:
            _print_plan(loaded, by_trl=engine == "trl")
            others = ["--engine", engine] if engine else []
            others += [part for setting in trl or [] for part in ("--trl", setting)]
            what = ["--from", from_] if from_ else []
            what += ["--recipe", recipe or DEFAULT_RECIPE] if recipe or not from_ else []
            suggest("train", *what, *as_typed(set_), *others, comment=True)
            return
        folder = RunFolder(Path(loaded.output_dir) / (loaded.run_name or ""))
    by_trl = engine == "trl" or (engine is None and resume and folder.trl.is_dir())
    if by_trl and resume and set_:
        raise typer.BadParameter("--set with --resume: TRL goes on with the schedule it began; start a new run")
    if trl and not by_trl:
        raise typer.BadParameter("--trl is for --engine trl")
    if by_trl:
        done = _train_by_trl(loaded, folder, trl or [], resume=resume, quiet=quiet, force=force)
    else:
        _check_ready(loaded, force=force, resumed=resume)
        with _held(folder, loaded, resume=resume):
            from gtpo_cli.training.loop import train as train_here

            done = train_here(loaded, folder, resume=resume, quiet=quiet, say=say)
    if done is not None:
        _print_end(done)


def _train_by_trl(
    recipe: Recipe, folder: RunFolder, settings: list[str], *, resume: bool, quiet: bool, force: bool
) -> Run | None:
    """In this process and those it was started with; None in all but the main one, which speaks."""
    from gtpo_cli.integrations.trl_config import parse_extra

    extra = parse_extra(settings)
    from gtpo_cli.integrations.trl_run import Processes, train

    with Processes() as processes:
        try:
            _check_ready(recipe, force=force, resumed=resume, by_trl=True)
        except NotReadyError as error:
            if processes.is_main:
                raise
            raise typer.Exit(2) from error
        folder = RunFolder(Path(processes.agree(str(folder.path))))
        with _held(folder, recipe, resume=resume) if processes.is_main else nullcontext():
            return train(recipe, folder, processes, resume=resume, quiet=quiet, say=say, extra=extra)


def _check_ready(recipe: Recipe, *, force: bool, resumed: bool, by_trl: bool = False) -> None:
    """Everything that is missing, before there is a run folder."""
    if not force:
        from gtpo_cli.planning.readiness import check_ready

        check_ready(recipe, resumed=resumed, by_trl=by_trl)


@contextmanager
def _held(folder: RunFolder, recipe: Recipe, *, resume: bool) -> Iterator[None]:
    with folder.held(None if resume else recipe):
        output_is_extra()
        yield


def _check_extends(own: Recipe, asked: Recipe) -> None:
    """Raise RecipeError where a run that goes on would be another one."""
    from gtpo_cli.report.comparison import recipe_differences

    changed = {key: values[0] for key, values in recipe_differences([own, asked])}
    changed |= {
        key: getattr(own, key) for key in ("run_name", "output_dir") if getattr(own, key) != getattr(asked, key)
    }
    refused = [
        f"--set {key} with --resume: the steps made so far are of {key}: {value}, and a run has one recipe"
        for key, value in changed.items()
        if key not in (*ENDS, *CHANGES_NO_STEP)
    ]
    if refused:
        may = (
            f"what can change is its end ({', '.join(ENDS)}) and what changes no step ({', '.join(CHANGES_NO_STEP)}); "
            "for anything else start a new run from its weights: gtpo train --from RUN"
        )
        raise RecipeError([*refused, may])


def _new(recipe: str | None, overrides: list[str], start: str | None, *, trust: Trust) -> Recipe:
    """The recipe of a new run, with a run name: its own, or its file's name and the time."""
    if start is None:
        loaded, name = load_recipe(recipe or DEFAULT_RECIPE, overrides), find_recipe(recipe or DEFAULT_RECIPE).stem
    else:
        loaded, name = _from(start, recipe, overrides, trust=trust)
    if loaded.model.start is not None:
        from gtpo_cli.training.start import check_fits, find_start, notes_on

        found = find_start(loaded.model.start)
        check_fits(found, loaded.model)
        for note in notes_on(found, loaded.model):
            say(note)
    return loaded.model_copy(update={"run_name": loaded.run_name or f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"})


def _from(start: str, recipe: str | None, overrides: list[str], *, trust: Trust) -> tuple[Recipe, str]:
    """The recipe of a run that starts from another's checkpoint, and how to call it: the recipe named, with the model
    of that run, or that run's own."""
    from gtpo_cli.training.start import find_start

    found = find_start(start)
    overrides = [*found.overrides(), *overrides]
    if recipe is not None:
        return load_recipe(recipe, overrides), find_recipe(recipe).stem
    if found.run is None:
        raise typer.BadParameter(f"{start} is an adapter without a run; say how to train it with --recipe")
    loaded = found.run.recipe_to_run(["run_name=null", *overrides], trust=trust)
    if loaded.objective.name != (own := found.run.recipe().objective.name):
        raise RecipeError(
            f"--set objective.name with --from: the recipe of {found.run.path} has every switch as {own} has it; name "
            "a recipe with --recipe"
        )
    return loaded, found.run.name


def _print_end(done: Run) -> None:
    where = f"{done.folder.path}: step {done.step} of {done.total_steps}"
    if done.stopped is None:
        from gtpo_cli.tracking import read_metrics
        from gtpo_cli.training.summary import changes

        print(f"done: {where}")
        for change in changes(read_metrics(done.folder.metrics_file)):
            print(f"  {change.words:<14} {change}")
        print(f"  metrics      {done.folder.metrics_file}")
        print(f"  checkpoints  {done.folder.checkpoints}")
        print(f"  samples      {done.folder.samples}")
        if _can_be_tested(done.recipe):
            suggest("eval", done.folder.path, "--base")
        else:
            print(
                f"  test         nothing was held out; gtpo eval {done.folder.path} --data-path FILE asks another file"
            )
            suggest("report", done.folder.path)
        return
    print(f"stopped ({done.stopped}): {where} is saved")
    if done.stopped in EXITS:
        suggest("train", "--resume", done.folder.path)
    else:  # by itself: a resume would stop again
        suggest("report", done.folder.path)
    raise typer.Exit(EXITS.get(done.stopped, EXIT_STOPPED))


def _can_be_tested(recipe: Recipe) -> bool:
    """Whether gtpo eval has something to ask that was not trained on."""
    from gtpo_cli.data.held_out import holds_nothing_out

    asks_others = set(recipe.evaluation.benchmarks) - {
        source.benchmark for source in (*recipe.data.sources, recipe.data)
    }
    return bool(asks_others) or not all(map(holds_nothing_out, recipe.data.sources))


def _print_plan(recipe: Recipe, *, by_trl: bool) -> None:
    from gtpo_cli.data import prepare
    from gtpo_cli.models import load_tokenizer
    from gtpo_cli.planning.readiness import problems_of

    print(dump_recipe(recipe))
    for problem in problems_of(recipe, by_trl=by_trl):
        print(f"# cannot start here: {problem}")
    if by_trl:
        from gtpo_cli.integrations.trl_config import check_recipe

        check_recipe(recipe)
    data = prepare(recipe, *load_tokenizer(recipe), full_steps=by_trl)
    for note in data.notes:
        print(f"# {note}")
    if not _can_be_tested(recipe):
        print("# nothing is held out for gtpo eval; data.held_out: 0.1 keeps a tenth of the questions")
    print(f"# prompts: {len(data.prompts)}")
    print(f"# steps: {data.order.total_steps} ({data.order.steps_per_epoch} an epoch)")
    print(f"# completions: {data.sampled}")
    if data.imitated:
        print(f"# references: {data.imitated}, imitated; training samples nothing")
