"""gtpo train"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
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
    complete_runs,
    find_run,
)
from gtpo_cli.cli.printing import print_end, print_plan, say, suggest
from gtpo_cli.errors import NotReadyError, RecipeError
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.recipe.schema import CHANGES_NO_STEP
from gtpo_cli.runs.folder import RunFolder, Trust, new_run
from gtpo_cli.terminal.streams import output_is_extra

if TYPE_CHECKING:
    from gtpo_cli.job import TrainingJob
    from gtpo_cli.training.run import Outcome

ENDS = ("training.max_steps", "training.epochs")  # may change when a run is resumed, as CHANGES_NO_STEP may


def train(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="With --resume: the run to continue (default: the latest).",
            autocompletion=complete_runs,
        ),
    ] = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN[:best|last|STEP]",
            help="Start a new run from the weights of another run's checkpoint (or of an adapter folder). Default "
            "recipe: that run's.",
            autocompletion=complete_runs,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the run and its folder, as --set run_name=NAME (default: model, data, method and time).",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue a run; with --set training.max_steps=N, up to step N."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe, prompts and steps, and stop.")
    ] = False,
    quiet: QuietOption = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Start even if this machine seems to lack something (gtpo doctor), or resume with other data.",
        ),
    ] = False,
    engine: Annotated[
        Literal["gtpo", "trl"] | None,
        typer.Option("--engine", help="The trainer: gtpo's own, or TRL's for several GPUs (docs/trl.md)."),
    ] = None,
    trl: Annotated[
        list[str] | None,
        typer.Option("--trl", metavar="NAME=VALUE", help="With --engine trl: a GRPOConfig setting; repeatable."),
    ] = None,
    trust_remote_code: TrustOption = False,
    trust_run_code: TrustRunOption = False,
) -> None:
    """Train a model from a recipe; without one, the built-in model on arithmetic.

    gtpo train --recipe tiny_arithmetic

    gtpo train --recipe llama8b_gsm8k.yaml --name my-run

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
            "--dry-run is for a new run; gtpo recipes show RUN/recipe.yaml shows the recipe of this one"
        )
    if resume and from_ is not None:
        raise typer.BadParameter("--from starts a new run, --resume continues an old one; leave one of them out")
    if resume and name is not None:
        raise typer.BadParameter("a resumed run keeps its name; leave --name out")
    if run is not None and not resume and "=" in run:
        raise typer.BadParameter(f"unexpected argument {run}; did you mean --set {run}?")
    if run is not None and not resume:
        raise typer.BadParameter(f"unexpected argument {run}; did you mean --recipe {run}, or --resume {run}?")
    folder = None
    if resume:
        folder = find_run(run, what="train --resume")
        loaded = folder.recipe_to_run(set_ or [], trust=Trust(trust_remote_code, trust_run_code))
        if set_:
            _check_resumable(folder.recipe(), loaded)
    else:
        named = [f"run_name={json.dumps(name)}"] if name is not None else []
        loaded = _new_recipe(recipe, [*(set_ or []), *named], from_, trust=Trust(trust_remote_code, trust_run_code))
        if dry_run:
            print_plan(loaded, by_trl=engine == "trl")
            others = ["--engine", engine] if engine else []
            others += [part for setting in trl or [] for part in ("--trl", setting)]
            others += ["--name", name] if name else []
            what = ["--from", from_] if from_ else []
            what += ["--recipe", recipe or DEFAULT_RECIPE] if recipe or not from_ else []
            suggest("train", *what, *as_typed(set_), *others, comment=True)
            return
    by_trl = engine == "trl" or (engine is None and folder is not None and folder.trl.is_dir())
    if by_trl and resume and set_:
        raise typer.BadParameter("--set with --resume: TRL goes on with the schedule it began; start a new run")
    if trl and not by_trl:
        raise typer.BadParameter("--trl is for --engine trl")
    if by_trl:
        done = _train_by_trl(loaded, folder, trl or [], quiet=quiet, force=force)
    else:
        done = _train_here(loaded, folder, quiet=quiet, force=force)
    if done is not None:
        print_end(done)


def _train_here(recipe: Recipe, resumed: RunFolder | None, *, quiet: bool, force: bool) -> Outcome | None:
    """Train with gtpo's own trainer. Return None if the run was already finished."""
    if resumed is not None and recipe == resumed.recipe():
        from gtpo_cli.runs.checkpoints import finished_at

        if step := finished_at(resumed, recipe):
            say(f"{resumed.path} is finished: step {step} of {step}; a larger training.max_steps continues it")
            suggest("train", "--resume", resumed.path, "--set", f"training.max_steps={2 * step}")
            return None
    from gtpo_cli.machine.ready import resolve

    job = resolve(recipe, force=force, resumed=resumed, say=say)
    with _locked(job, resumed) as (job, folder):
        from gtpo_cli.training.loop import train

        return train(job, folder, resume=resumed is not None, quiet=quiet, say=say)


def _train_by_trl(
    recipe: Recipe, resumed: RunFolder | None, settings: list[str], *, quiet: bool, force: bool
) -> Outcome | None:
    """Train with TRL in this process and its companions. Only the main process prints; the others return None, as all
    do if the run was already finished."""
    from gtpo_cli.tools.trl.config import check_recipe, parse_extra

    extra = parse_extra(settings)
    from gtpo_cli.machine.ready import resolve
    from gtpo_cli.runs.checkpoints import finished_at
    from gtpo_cli.tools.trl.run import Processes, train

    resume = resumed is not None
    with Processes() as processes:
        if resumed is not None and (step := finished_at(resumed, recipe)):
            if processes.is_main:
                say(f"{resumed.path} is finished: step {step} of {step}; a new run can start from its weights")
                suggest("train", "--from", resumed.path, "--engine", "trl")
            return None
        try:
            check_recipe(recipe)
            job = resolve(
                recipe, force=force, resumed=resumed, by_trl=True, say=say if processes.is_main else lambda text: None
            )
        except (NotReadyError, RecipeError) as error:
            if processes.is_main:
                raise
            raise typer.Exit(2) from error
        with _locked(job, resumed) if processes.is_main else nullcontext((job, resumed)) as (job, folder):
            folder = RunFolder(Path(processes.agree(str(folder.path if folder else ""))))
            return train(job, folder, processes, resume=resume, quiet=quiet, say=say, extra=extra)


@contextmanager
def _locked(job: TrainingJob, resumed: RunFolder | None) -> Iterator[tuple[TrainingJob, RunFolder]]:
    """Lock the folder of the resumed run, or of a new one. Yield the job with its run's name, and the folder."""
    recipe, folder = (job.recipe, resumed) if resumed is not None else new_run(job.recipe)
    job = job.named(recipe.run_name)
    with folder.held(None if resumed is not None else job.kept):
        output_is_extra()
        yield job, folder


def _check_resumable(own: Recipe, changed: Recipe) -> None:
    """Raise RecipeError if the overrides would make the resumed run a different one."""
    from gtpo_cli.recipe.section import recipe_differences

    before = {key: values[0] for key, values in recipe_differences([own, changed])}
    before |= {
        key: getattr(own, key) for key in ("run_name", "output_dir") if getattr(own, key) != getattr(changed, key)
    }
    refused = [
        f"--set {key} with --resume: the steps so far were made with {key}: {value}, and a run has one recipe"
        for key, value in before.items()
        if key not in (*ENDS, *CHANGES_NO_STEP)
    ]
    if refused:
        allowed = (
            f"you can change its end ({', '.join(ENDS)}) and what changes no step ({', '.join(CHANGES_NO_STEP)}); "
            "for anything else start a new run from its weights: gtpo train --from RUN"
        )
        raise RecipeError([*refused, allowed])


def _new_recipe(recipe: str | None, overrides: list[str], start: str | None, *, trust: Trust) -> Recipe:
    if start is None:
        loaded = load_recipe(recipe or DEFAULT_RECIPE, overrides)
    else:
        loaded = _recipe_from(start, recipe, overrides, trust=trust)
    if loaded.model.start is not None:
        from gtpo_cli.training.start import check_fits, find_start, notes_on

        found = find_start(loaded.model.start)
        check_fits(found, loaded.model)
        for note in notes_on(found, loaded.model):
            say(note)
    return loaded


def _recipe_from(start: str, recipe: str | None, overrides: list[str], *, trust: Trust) -> Recipe:
    """Return the recipe of a run that starts from another run's checkpoint: the named recipe with that run's model, or
    else that run's recipe."""
    from gtpo_cli.training.start import find_start

    found = find_start(start)
    if recipe is not None:
        loaded = load_recipe(recipe, [*found.overrides(), *overrides])
        with suppress(RecipeError):  # a recipe that is complete only with the start's model: nothing is overridden
            was = load_recipe(recipe, overrides).model.lora
            if was != loaded.model.lora:
                say(
                    f"model.lora: {loaded.model.lora or 'null'}, as {found.name} was trained, instead of the recipe's "
                    f"{was or 'null'}"
                )
        return loaded
    overrides = [*found.overrides(), *overrides]
    if found.run is None:
        raise typer.BadParameter(f"{start} is an adapter without a run; say how to train it with --recipe")
    its_own = ["run_name=null", "objective.initial_entropy=null"]  # of another model or another run
    return found.run.recipe_to_run([*its_own, *overrides], trust=trust)
