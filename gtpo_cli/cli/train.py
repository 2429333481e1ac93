"""gtpo train"""

from __future__ import annotations

import signal
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from gtpo_cli.cli.options import RecipeOption, SetOption, TrustOption, find_run
from gtpo_cli.cli.printing import suggest
from gtpo_cli.cli.streams import output_is_extra
from gtpo_cli.errors import WORDS, Ended

if TYPE_CHECKING:
    from gtpo_cli.recipe import Recipe
    from gtpo_cli.run_folder import RunFolder
    from gtpo_cli.training.loop import TrainResult

# Exit codes of a run that stopped before its last step, saved: by a signal (130 Ctrl-C, 143 SIGTERM, 129 SIGHUP), by
# itself.
EXITS = {word: 128 + number for number, word in WORDS.items()}
EXIT_STOPPED = 3
DEFAULT_RECIPE = "tiny_arithmetic"


class Engine(StrEnum):
    gtpo = "gtpo"
    trl = "trl"


def train(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="With --resume: the run to continue (default: the latest).")
    ] = None,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run from its newest checkpoint.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe, prompts and steps, and stop.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Start even where this machine seems to lack something (gtpo doctor).")
    ] = False,
    engine: Annotated[
        Engine | None,
        typer.Option("--engine", help="Whose trainer: gtpo's own, or TRL's, for several GPUs (docs/trl.md)."),
    ] = None,
    trl: Annotated[
        list[str] | None,
        typer.Option("--trl", metavar="NAME=VALUE", help="With --engine trl: a GRPOConfig setting; repeatable."),
    ] = None,
    trust_remote_code: TrustOption = False,
) -> None:
    """Train a model as a recipe says; without one, the built-in model on arithmetic.

    gtpo train --recipe tiny_arithmetic

    gtpo train --recipe llama8b_gsm8k.yaml --set rollout.group_size=12

    gtpo train --resume runs/my-run

    accelerate launch --num_processes 4 -m gtpo_cli train --recipe llama8b_gsm8k --engine trl
    """
    if resume and (recipe is not None or set_):
        raise typer.BadParameter("a resumed run keeps its recipe; leave --recipe and --set out")
    if run is not None and not resume:
        raise typer.BadParameter(f"unexpected argument {run}; did you mean --recipe {run}, or --resume {run}?")
    if resume:
        folder = find_run(run, what="train --resume")
        loaded = folder.recipe_to_run(trust_remote_code=trust_remote_code)
        runner = _runner(engine or (Engine.trl if folder.trl.is_dir() else Engine.gtpo), trl or [])
        if not force:
            _look_first(loaded, runner, resumed=True)
    else:
        loaded = _named(recipe or DEFAULT_RECIPE, set_ or [])
        if dry_run:
            _print_plan(loaded, by_trl=engine is Engine.trl)
            overrides = [part for override in set_ or [] for part in ("--set", override)]
            suggest("train", "--recipe", recipe or DEFAULT_RECIPE, *overrides, comment=True)
            return
        from gtpo_cli.run_folder import RunFolder

        runner = _runner(engine or Engine.gtpo, trl or [])
        if not force:
            _look_first(loaded, runner)
        loaded = loaded.model_copy(update={"run_name": runner.agree(loaded.run_name or "")})
        folder = RunFolder(Path(loaded.output_dir) / (loaded.run_name or ""))
    with runner:
        if not runner.is_main:
            runner.train(loaded, folder, resume=resume, quiet=True)
            return
        with folder.lock():
            if not resume:
                folder.create(loaded)
            try:
                output_is_extra()
                print(f"{'resuming' if resume else 'training'} {folder.path}", flush=True)
                result = runner.train(loaded, folder, resume=resume, quiet=quiet)
            except BaseException as error:
                if not resume:
                    folder.discard_if_not_begun()
                if isinstance(error, (KeyboardInterrupt, Ended)):
                    number = error.number if isinstance(error, Ended) else signal.SIGINT
                    raise Ended(number, WORDS[number] + _lost(folder)) from None
                raise
    _finish(result)


def _lost(folder: RunFolder) -> str:
    """What a run that was ended at once did in vain."""
    from gtpo_cli.checkpoints import CheckpointStore

    if not folder.metrics_file.is_file():
        return ""
    reached = folder.metrics_file.read_bytes().count(b"\n")
    saved = max(CheckpointStore(folder.checkpoints, keep_last=1).steps(), default=0)
    steps = f"step {reached}" if reached == saved + 1 else f"steps {saved + 1} to {reached}"
    lost = f"{steps} and what was under way are lost" if reached > saved else "only what was under way is lost"
    return f": {lost}; gtpo train --resume {folder.path} goes on from step {saved}"


class _Own:
    """gtpo's own loop, in this process."""

    is_main = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def agree(self, text: str) -> str:
        return text

    def train(self, recipe: Recipe, folder: RunFolder, *, resume: bool, quiet: bool) -> TrainResult:
        from gtpo_cli.training.loop import train as run_training

        return run_training(recipe, folder, resume=resume, quiet=quiet, say=_say)


class _Trl(_Own):
    """TRL's trainer, in this process and those it was started with; the main one speaks."""

    def __init__(self, extra: list[str]) -> None:
        from gtpo_cli.integrations.trl_config import parse_extra

        self._extra = parse_extra(extra)
        from gtpo_cli.integrations.trl_run import Processes

        self._processes = Processes()
        self.is_main = self._processes.is_main

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def agree(self, text: str) -> str:
        return self._processes.agree(text)

    def train(self, recipe: Recipe, folder: RunFolder, *, resume: bool, quiet: bool) -> TrainResult:
        from gtpo_cli.integrations.trl_run import train as run_training

        return run_training(
            recipe, folder, self._processes, resume=resume, quiet_display=quiet,
            say=_say if self.is_main else lambda text: None, extra=self._extra,
        )  # fmt: skip


def _runner(engine: Engine, extra: list[str]) -> _Own:
    if engine is Engine.trl:
        return _Trl(extra)
    if extra:
        raise typer.BadParameter("--trl is for --engine trl")
    return _Own()


def _look_first(recipe: Recipe, runner: _Own, *, resumed: bool = False) -> None:
    """Everything that is missing, before there is a run folder. Each process of a launcher looks, and one speaks."""
    from gtpo_cli.errors import NotReadyError
    from gtpo_cli.planning.readiness import check_ready

    try:
        check_ready(recipe, resumed=resumed, by_trl=isinstance(runner, _Trl))
    except NotReadyError as error:
        if not runner.is_main:
            raise typer.Exit(2) from error
        raise


def _say(text: str) -> None:
    print(text, flush=True)


def _named(recipe: str, overrides: list[str]) -> Recipe:
    """The recipe with a run name: its own, or its file's name and the time."""
    from gtpo_cli.recipe import find_recipe, load_recipe

    loaded = load_recipe(recipe, overrides)
    if loaded.run_name is not None:
        return loaded
    stem = find_recipe(recipe).stem
    return loaded.model_copy(update={"run_name": f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"})


def _finish(result: TrainResult) -> None:
    where = f"{result.run.path}: step {result.step} of {result.total_steps}"
    if result.stopped is None:
        print(f"done: {where}")
        _print_changes(result)
        print(f"  metrics      {result.run.metrics_file}")
        print(f"  checkpoints  {result.run.checkpoints}")
        print(f"  samples      {result.run.samples}")
        suggest("eval", result.run.path, "--base")
        return
    print(f"stopped ({result.stopped}): {where} is saved")
    if result.stopped in EXITS:
        suggest("train", "--resume", result.run.path)
    else:  # by itself: a resume would stop again
        suggest("report", result.run.path)
    raise typer.Exit(EXITS.get(result.stopped, EXIT_STOPPED))


def _print_changes(result: TrainResult) -> None:
    from gtpo_cli.tracking import read_metrics
    from gtpo_cli.training.summary import changes

    for change in changes(read_metrics(result.run.metrics_file)):
        print(f"  {change.words:<14} {change}")


def _print_plan(recipe: Recipe, *, by_trl: bool) -> None:
    from gtpo_cli.data import prepare
    from gtpo_cli.models import load_tokenizer
    from gtpo_cli.planning.readiness import problems_of
    from gtpo_cli.recipe import dump_recipe

    print(dump_recipe(recipe))
    for problem in problems_of(recipe, run_plugins=False, by_trl=by_trl):
        print(f"# cannot start here: {problem}")
    if by_trl:
        from gtpo_cli.integrations.trl_config import check_recipe

        check_recipe(recipe)
    data = prepare(recipe, *load_tokenizer(recipe), full_steps=by_trl)
    for note in data.notes:
        print(f"# {note}")
    print(f"# prompts: {len(data.prompts)}")
    print(f"# steps: {data.order.total_steps} ({data.order.steps_per_epoch} an epoch)")
    print(f"# completions: {data.sampled}")
    if data.imitated:
        print(f"# references: {data.imitated}, imitated; training samples nothing")
