"""Print a run's plan (gtpo train --dry-run), and its result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gtpo_cli.cli.options import gpu_here
from gtpo_cli.cli.printing import suggest
from gtpo_cli.errors import WORDS, ModelError, gtpo
from gtpo_cli.recipe import Recipe, dump_recipe
from gtpo_cli.terminal.streams import print_whole
from gtpo_cli.text import counted

if TYPE_CHECKING:
    from gtpo_cli.data import Prepared
    from gtpo_cli.training.run import Outcome

# Exit codes of a run that saved and stopped before its last step: by a signal (130 Ctrl-C, 143 SIGTERM, 129 SIGHUP), or
# by itself.
EXITS = {word: 128 + number for number, word in WORDS.items()}
EXIT_STOPPED = 3


def print_plan(recipe: Recipe, *, by_trl: bool) -> None:
    """Print the answer to --dry-run: the facts of the run as comments, then the recipe with every open key set."""
    from gtpo_cli.machine.ready import memory_finding, problems_of
    from gtpo_cli.machine.resolve import Parts

    parts = Parts(recipe, by_trl=by_trl)
    engines = "not here" if isinstance(parts.closed.engines, ModelError) else parts.closed.engines
    print(f"# model: {recipe.model.before_training}; engines: {engines}", flush=True)
    if parts.closed.words:
        print(f"# {parts.closed.words}")
    for problem in problems_of(parts):
        print(f"# cannot start here: {problem}")
    try:
        if by_trl:
            from gtpo_cli.tools.trl.config import check_recipe

            check_recipe(recipe)
        _print_data(recipe, parts.data, parts.model.tokenizer)
        print(f"# {_filter_words(recipe)}")
        gpu = gpu_here()
        no_gpu = "memory: there is no GPU here; gtpo plan says what one needs"
        print(f"# {no_gpu if gpu is None else memory_finding(parts, gpu, read_data=False)}")
    finally:  # also where the data or the model are not available
        print_whole(f"\n{dump_recipe(parts.recipe)}")


def _print_data(recipe: Recipe, data: Prepared, tokenizer: Any) -> None:
    """Print the counts of the data and steps, and the first prompt as the model gets it."""
    for note in data.notes:
        print(f"# {note}")
    if not _can_be_tested(recipe):
        print("# nothing is held out for gtpo eval; data.held_out: 0.1 keeps a tenth of the questions")
    print(f"# prompts: {len(data.prompts)}")
    print(f"# steps: {data.order.total_steps} ({data.order.steps_per_epoch} an epoch)")
    print(f"# completions: {data.sampled}")
    if data.imitated:
        print(f"# references: {data.imitated}, imitated; training samples nothing")
    _, ids = data.order.step(1)[0]
    print(f"# the first prompt, as the model gets it ({counted(len(ids), 'token')}):")
    for line in tokenizer.decode(ids).splitlines():
        print_whole(f"#   {line}")


def _filter_words(recipe: Recipe) -> str:
    objective = recipe.objective
    if objective.name == "sft":
        return "entropy filter: none in SFT"
    if objective.filter.enabled != "auto":
        return f"entropy filter: {objective.filter.enabled}"
    if objective.initial_entropy is None:
        prompts = counted(objective.probe.num_prompts, "prompt")
        return f"entropy filter: decided before step 1 by <H>_ini, measured on {prompts} (gtpo probe-entropy)"
    from gtpo_cli.entropy_filter import filter_is_on

    state = "on" if filter_is_on(objective.initial_entropy, objective.filter.enabled) else "off"
    return f"entropy filter: {state}, as objective.initial_entropy is {objective.initial_entropy:g}"


def print_end(done: Outcome) -> None:
    """Print the result of a run and the next command. Raises typer.Exit if it stopped before its last step."""
    where = f"{done.folder.path}: step {done.step} of {done.total_steps}"
    if done.stopped is None:
        from gtpo_cli.tracking import changes, read_metrics

        print(f"done: {where}")
        changed = changes(read_metrics(done.folder.metrics_file), completions=done.recipe.completions_per_step)
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
