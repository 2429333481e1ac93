"""What several commands say in the same way: the next command, tables, scores, the audit of an evaluation."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gtpo_cli.cli.streams import write_json

if TYPE_CHECKING:
    from gtpo_cli.evaluation.misjudged import AuditEntry
    from gtpo_cli.evaluation.records import EvaluatedProblem, Results

AUDIT_ROWS = 20


def say(text: str) -> None:
    """Print a line at once, also where the output is no terminal."""
    print(text, flush=True)


def print_json(document: Mapping[str, Any]) -> None:
    """The answer to --json: one object on a line. JSON has no NaN and no infinity: they are null."""
    write_json(json.dumps(_finite(document), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def suggest(*arguments: str | Path, comment: bool = False) -> None:
    """Print the command that comes next, as it can be typed here: the last line of every command.

    `comment`: as a YAML comment, below a recipe.
    """
    print(("# " if comment else "") + "next: " + shlex.join([_command(), *map(str, arguments)]))


def _command() -> str:
    """`gtpo` where the shell would find this program under that name, else the path by which it was called."""
    called = Path(sys.argv[0])
    found = shutil.which("gtpo")
    if called.name != "gtpo" or not called.exists() or (found and Path(found).samefile(called)):
        return "gtpo"
    return os.path.relpath(called) if called.resolve().is_relative_to(Path.cwd()) else str(called)


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = (), title: str | None = None
) -> None:
    """A table; `numbers` are the columns that stand to the right. A row that ends with * is bold.

    Folded on a terminal, as wide as it needs to be elsewhere.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from gtpo_cli.tracking.console import Console

    console = Console()
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column, name in enumerate(header):
        table.add_column(Text(name), justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        style = "bold" if row[-1] == "*" else ""
        table.add_row(*(Text(cell, style=style) for cell in row))  # Text: brackets are no markup
    (console if console.is_terminal else Console(width=100_000)).print(table)


def print_scores(results: Mapping[str, Results]) -> None:
    """A row for each score, a column for each subject."""
    from gtpo_cli.report.tables import score_interval, score_words

    names = dict.fromkeys(name for result in results.values() for name in result.scores)
    rows = [
        [
            score_words(name),
            *(score_interval(name, r.scores[name].interval) if name in r.scores else "" for r in results.values()),
        ]
        for name in names
    ]
    print_table(["", *results], rows, numbers=range(1, len(results) + 1))


def print_audit(subject: str, problems: Sequence[EvaluatedProblem]) -> None:
    """What the grader may have missed."""
    from gtpo_cli.evaluation.misjudged import audit

    found = audit(problems)
    print(
        f"\naudit of {subject}: {found.judged_wrong} completions judged wrong, {found.without_answer} of them without "
        "an answer"
    )
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
