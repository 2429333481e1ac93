"""Output that several commands share: the next command, tables, scores, the audit of an evaluation."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gtpo_cli.errors import gtpo
from gtpo_cli.terminal.streams import print_whole, write_json
from gtpo_cli.text import counted

if TYPE_CHECKING:
    from gtpo_cli.evaluation.misjudged import AuditEntry
    from gtpo_cli.evaluation.records import EvaluatedProblem, Results

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
    from gtpo_cli.terminal.tables import print_table as print_it

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


def print_parts(column: str, parts: Mapping[str, Sequence[str]], results: Mapping[str, Results]) -> None:
    """Print a row for each part of the problems, with their number and each subject's accuracy and largest pass@k."""
    from gtpo_cli.tools.report.tables import score_interval, score_words

    shown = [(subject, name) for subject, one in results.items() for name in one.headlines]
    rows = [
        [
            value,
            str(len(ids)),
            *(score_interval(name, results[subject].part(ids).scores[name].interval) for subject, name in shown),
        ]
        for value, ids in parts.items()
    ]
    heads = [f"{subject} {score_words(name)}" for subject, name in shown]
    print()
    print_table([column, "problems", *heads], rows, numbers=range(1, len(heads) + 2))


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
