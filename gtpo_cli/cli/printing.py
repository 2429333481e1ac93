"""Output that several commands share: the next command, tables, scores, the audit of an evaluation."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from gtpo_cli.errors import WORDS, ModelError, gtpo
from gtpo_cli.recipe import Recipe, dump_recipe
from gtpo_cli.terminal.signals import Waiting
from gtpo_cli.terminal.streams import print_whole, write_json
from gtpo_cli.text import counted
from gtpo_cli.types import Completion, Problem, Verdict

if TYPE_CHECKING:
    from gtpo_cli.data import Prepared
    from gtpo_cli.evaluation.misjudged import AuditEntry
    from gtpo_cli.evaluation.store import EvaluatedProblem, Results
    from gtpo_cli.recipe.rewards import RewardsRecipe
    from gtpo_cli.training.run import Outcome


AUDIT_ROWS = 20


def say(text: str) -> None:
    """Print a line at once, even if the output is no terminal."""
    print(text, flush=True)


def print_json(document: Mapping[str, Any]) -> None:
    """Print the answer to --json, one object on a line. Records and paths are converted; NaN and infinity become
    null."""
    from pydantic_core import to_jsonable_python

    write_json(json.dumps(to_jsonable_python(document, inf_nan_mode="null"), allow_nan=False))


def suggest(*arguments: str | Path, comment: bool = False) -> None:
    """Print the command to type next: the last line of every command.

    `comment` makes it a YAML comment, below a recipe.
    """
    print_whole(("# " if comment else "") + f"next: {gtpo()} " + shlex.join(map(str, arguments)))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = (), title: str | None = None
) -> None:
    """Print a table: as wide as the terminal, or elsewhere as wide as it needs to be."""
    from gtpo_cli.terminal.console import Console
    from gtpo_cli.terminal.console import print_table as print_it

    print_it(Console(), header, rows, numbers=numbers, title=title)


def print_scores(results: Mapping[str, Results]) -> None:
    """Print a row for each score and a column for each subject."""
    from gtpo_cli.tools.report.tables import score_interval, score_words

    names = dict.fromkeys(name for result in results.values() for name in result.scores)
    rows = [
        [
            score_words(name),
            *(score_interval(name, r.scores[name].interval) if name in r.scores else "" for r in results.values()),
        ]
        for name in names
    ]
    print_table(["", *results], rows, numbers=range(1, len(results) + 1))


def print_parts(
    column: str, parts: Mapping[str, Mapping[str, Results]], *, frequent: Mapping[str, tuple[str, float] | None]
) -> None:
    """Print a row for each part, with the number of its problems, how often the most frequent answer is right, and each
    subject's headlines; last their means, in which each part counts the same. `parts`: results by part, then by
    subject."""
    from gtpo_cli.estimators import macro_average
    from gtpo_cli.tools.report.tables import MEAN_OF_PARTS, score_interval, score_number, score_words

    first, *others = parts.values()
    shown = [
        (subject, name)
        for subject, results in first.items()
        for name in results.headlines
        if all(name in one[subject].scores for one in others)
    ]
    columns = [(name, [one[subject].scores[name].interval for one in parts.values()]) for subject, name in shown]
    counts = [str(len(next(iter(one.values())).problem_ids)) for one in parts.values()]
    shares = [found[1] if (found := frequent[part]) else None for part in parts]
    guessed = ["" if share is None else score_number("accuracy", share) for share in shares]
    lines = [[*parts], counts, guessed, *([score_interval(name, each) for each in own] for name, own in columns)]
    rows = [list(row) for row in zip(*lines, strict=True)]
    if others:
        rows.append([MEAN_OF_PARTS, "", "", *(score_interval(name, macro_average(own)) for name, own in columns)])
    heads = [f"{subject} {score_words(name)}" for subject, name in shown]
    print()
    print_table([column, "problems", "most frequent answer", *heads], rows, numbers=range(1, len(heads) + 3))


def print_audit(subject: str, problems: Sequence[EvaluatedProblem]) -> None:
    """Print what the grader may have misjudged."""
    from gtpo_cli.evaluation.misjudged import audit

    found = audit(problems)
    wrong = counted(found.judged_wrong, "completion")
    print(f"\naudit of {subject}: {wrong} judged wrong, {found.without_answer} of them without an answer")
    _print_entries("judged wrong, but it looks right", found.looks_right)
    _print_entries("answers that cannot be compared", found.unparsable)


def _print_entries(title: str, entries: Sequence[AuditEntry]) -> None:
    if not entries:
        print(f"{title}: none")
        return
    rows = [[e.problem_id, e.gold, e.answer, str(e.count), e.why] for e in entries[:AUDIT_ROWS]]
    print_table(["problem", "gold", "answer", "times", "why"], rows, numbers=[3], title=f"{title}: {len(entries)}")
    if len(entries) > AUDIT_ROWS:
        print(f"and {len(entries) - AUDIT_ROWS} more; all are in samples.jsonl")


class Report(Protocol):
    def __call__(self, done: int, total: int, now: str = "") -> None:
        """Report how many are done, and words for what is going on."""


@contextmanager
def count_progress(label: str, *, unit: str = "problem", each: bool = False, quiet: bool = False) -> Iterator[Report]:
    """Yield the function that reports. With `each`, a plain line is printed whenever more are done."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from gtpo_cli.terminal.console import Console

    console = Console(stderr=True)
    if quiet:
        yield _nothing
    elif console.is_interactive:
        with Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), MofNCompleteColumn(),
            TextColumn(f"{unit}s"), TimeElapsedColumn(), TextColumn("elapsed"), TimeRemainingColumn(),
            TextColumn("left"), console=console, transient=True, expand=True, speed_estimate_period=600.0,
        ) as bar:  # fmt: skip
            task = bar.add_task(label, total=None)

            def move(done: int, total: int, now: str = "") -> None:
                bar.update(task, completed=done, total=total, description=f"{label}: {now}" if now else label)

            yield move
    else:
        with Waiting(say, label, unit=unit) as waiting:
            said = -1

            def count(done: int, total: int, now: str = "") -> None:
                nonlocal said
                waiting.count(done, total, now)
                if each and done != said:
                    said = done
                    say(waiting.so_far())

            yield count


def _nothing(done: int, total: int, now: str = "") -> None:
    pass


def print_answer(completion: Completion, recipe: Recipe, *, opened: str, most: int, limit: str, context: int) -> None:
    """Print the extracted answer and the length. `most` is the limit on its tokens, set by the option or key `limit`;
    `context` is the limit on prompt and answer together; `opened`: see `Problem`."""
    from gtpo_cli.rewards import extract_answer
    from gtpo_cli.rewards.extract import NO_ANSWER, tag_texts

    mode, tags = recipe.rewards.format.mode, recipe.rewards.tags
    answer = extract_answer(opened + completion.text, mode=mode, tags=tags)
    if answer is None and mode == "strict" and tags.place == "tags":
        count = {4: "four", 2: "two"}[len(tag_texts(tags))]
        answer = f"none: the {count} tags do not appear exactly once each and in order"
    print_line("answer", NO_ANSWER if answer is None else answer)
    if not completion.truncated:
        end = "ended by itself"
    elif len(completion.token_ids) == most:
        end = f"truncated: it reached {limit}"
    else:
        end = f"truncated: prompt and answer fill the context of {context} tokens"
    print_line("length", f"{counted(len(completion.token_ids), 'token')}, {end}")


def print_verdict(problem: Problem, verdict: Verdict, rewards: RewardsRecipe) -> None:
    """Print whether it is right, and the reward with its terms."""
    from gtpo_cli.tracking import reward_words

    late = " (the comparison ran out of time or memory)" if verdict.timed_out else ""
    said = ["correct" if verdict.correct else "wrong"]
    if verdict.score is not None:
        said.append(f"the task's score is {verdict.score:g} of 1")
    if verdict.failed:
        said.append(f"its verifier raised {verdict.failed}")
    if problem.gold:
        said.append(f"the gold answer is {problem.gold}")
    print_line("verdict", ", ".join(said) + late)
    terms = (
        f"{reward_words(name)} {verdict.scores[name]:g}" + ("" if weight == 1.0 else f" x {weight:g}")
        for name, weight in rewards.weights.items()
    )
    print_line("reward", f"{verdict.reward:g} = {' + '.join(terms)}")


def print_line(word: str, text: str) -> None:
    """Print a line below a completion."""
    print(f"  {word:<8} {text}")


# Exit codes of a run that saved and stopped before its last step: by a signal (130 Ctrl-C, 143 SIGTERM, 129 SIGHUP), or
# by itself.
EXITS = {word: 128 + number for number, word in WORDS.items()}
EXIT_STOPPED = 3


def print_plan(recipe: Recipe, *, by_trl: bool) -> None:
    """Print the answer to --dry-run: the facts of the run as comments, then the recipe with every open key set."""
    from gtpo_cli.machine.open_keys import gpu_memory
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
        gpu = gpu_memory()
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
    print(f"stopped ({done.stopped}): {where if done.step else 'no step'} is saved")
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
