"""Print a run's plan (gtpo train --dry-run), and its result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gtpo_cli.cli.printing import suggest
from gtpo_cli.cli.streams import print_whole
from gtpo_cli.errors import WORDS, gtpo
from gtpo_cli.recipe import Recipe, dump_recipe

if TYPE_CHECKING:
    from gtpo_cli.training.run import Run

# Exit codes of a run that saved and stopped before its last step: by a signal (130 Ctrl-C, 143 SIGTERM, 129 SIGHUP), or
# by itself.
EXITS = {word: 128 + number for number, word in WORDS.items()}
EXIT_STOPPED = 3


def print_plan(recipe: Recipe, *, by_trl: bool) -> None:
    """Print the answer to --dry-run: the recipe with every open key set, and the size of the run."""
    from gtpo_cli.data import prepare
    from gtpo_cli.models import load_tokenizer
    from gtpo_cli.models.engines import on_transformers
    from gtpo_cli.planning.open_keys import close
    from gtpo_cli.planning.readiness import problems_of
    from gtpo_cli.rewards import check_columns

    left_open = close(on_transformers(recipe) if by_trl else recipe)
    print_whole(dump_recipe(recipe.with_values(left_open.values)))
    if left_open.words:
        print(f"# {left_open.words}")
    problems = problems_of(recipe, by_trl=by_trl)
    for problem in problems:
        print(f"# cannot start here: {problem}")
    if by_trl:
        from gtpo_cli.integrations.trl_config import check_recipe

        check_recipe(recipe)
    data = prepare(recipe, *load_tokenizer(recipe), full_steps=by_trl)
    if not any(problem.subject == "recipe" for problem in problems):
        check_columns(recipe.rewards, [problem for problem, _ in data.prompts])
    for note in data.notes:
        print(f"# {note}")
    if not _can_be_tested(recipe):
        print("# nothing is held out for gtpo eval; data.held_out: 0.1 keeps a tenth of the questions")
    print(f"# prompts: {len(data.prompts)}")
    print(f"# steps: {data.order.total_steps} ({data.order.steps_per_epoch} an epoch)")
    print(f"# completions: {data.sampled}")
    if data.imitated:
        print(f"# references: {data.imitated}, imitated; training samples nothing")


def print_end(done: Run) -> None:
    """Print the result of a run and the next command. Raises typer.Exit if it stopped before its last step."""
    where = f"{done.folder.path}: step {done.step} of {done.total_steps}"
    if done.stopped is None:
        from gtpo_cli.tracking import changes, read_metrics

        print(f"done: {where}")
        changed = changes(read_metrics(done.folder.metrics_file))
        for number, change in enumerate(changed):
            if number == 0 or change.steps != changed[number - 1].steps:
                print(f"means of {change.span}:")
            print(f"  {change.words:<14} {change}")
        print("files:")
        print(f"  metrics        {done.folder.metrics_file}")
        print(f"  checkpoints    {done.folder.checkpoints}")
        print(f"  samples        {done.folder.samples}")
        _print_offline(done.folder.path)
        if _can_be_tested(done.recipe):
            suggest("eval", done.folder.path, "--base")
        else:
            command = f"{gtpo()} eval {done.folder.path} --data-path FILE"
            print_whole(f"nothing was held out to test on; to test on another file: {command}")
            suggest("report", done.folder.path)
        return
    print(f"stopped ({done.stopped}): {where} is saved")
    _print_offline(done.folder.path)
    if done.stopped in EXITS:
        suggest("train", "--resume", done.folder.path)
    else:  # by itself: a resume would stop again
        suggest("report", done.folder.path)
    raise typer.Exit(EXITS.get(done.stopped, EXIT_STOPPED))


def _print_offline(run: Path) -> None:
    if not (run / "wandb").is_dir():
        return
    from gtpo_cli.tracking.wandb import sync_command, waits_for_upload

    if waits_for_upload(run):
        print_whole(f"  wandb          offline; to upload it: {sync_command(run)}")


def _can_be_tested(recipe: Recipe) -> bool:
    """Whether gtpo eval has questions that were not trained on."""
    from gtpo_cli.data.problems import holds_nothing_out

    other_benchmarks = set(recipe.evaluation.benchmarks) - {
        source.benchmark for source in (*recipe.data.sources, recipe.data)
    }
    return bool(other_benchmarks) or not all(map(holds_nothing_out, recipe.data.sources))
