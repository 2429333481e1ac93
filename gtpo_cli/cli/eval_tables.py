"""The scores and the audit of an evaluation as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gtpo_cli.estimators import Interval
    from gtpo_cli.evaluation.misjudged import AuditEntry
    from gtpo_cli.evaluation.records import EvaluatedProblem, Results

AUDIT_ROWS = 20

# Scores in words; those that are no shares, with their unit.
_WORDS = {
    "format_rate": "format",
    "strict_format_rate": "strict format",
    "truncated_share": "truncated",
    "unparsable_share": "unparsable",
    "timed_out_share": "out of time or memory",
    "mean_entropy": "entropy",
    "mean_length": "length",
}
_UNITS = {"mean_entropy": ("nats", 3), "mean_length": ("tokens", 1)}


def print_scores(results: Mapping[str, Results]) -> None:
    """A row for each score, a column for each subject."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from gtpo_cli.tracking.console import Console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for subject in results:
        table.add_column(Text(subject), justify="right")
    for name in dict.fromkeys(name for result in results.values() for name in result.scores):
        cells = [
            shown(name, result.scores[name].interval) if name in result.scores else "" for result in results.values()
        ]
        table.add_row(*map(Text, (words(name), *cells)))  # brackets in a name are no markup
    Console(soft_wrap=True).print(table)


def words(name: str) -> str:
    """A score's name as a user reads it."""
    return _WORDS.get(name, name.replace("first_pass@", "first-k pass@"))


def shown(name: str, interval: Interval, *, difference: bool = False) -> str:
    """`93.1 % (91.0 to 95.0)`; a difference with its signs and without its unit: `+2.1 (-0.3 to +4.5)`."""
    if difference:
        estimate, low, high = (number(name, value, sign=True).split()[0] for value in interval)
    else:
        estimate = number(name, interval.estimate)
        low, high = (number(name, value).split()[0] for value in interval[1:])
    return f"{estimate} ({low} to {high})"


def number(name: str, value: float, *, sign: bool = False) -> str:
    """`93.1 %`, `0.161 nats`; with `sign` always one."""
    from gtpo_cli.evaluation.records import is_user_reward

    unit, digits = ("points", 3) if is_user_reward(name) else _UNITS.get(name, ("%", 1))
    value = 100 * value if unit == "%" else value
    return f"{value:{'+' if sign else ''}.{digits}f} {unit}"


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
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from gtpo_cli.tracking.console import Console

    if not entries:
        print(f"{title}: none")
        return
    table = Table(title=f"{title}: {len(entries)}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("problem", "gold", "answer", "times", "why"):
        table.add_column(column, justify="right" if column == "times" else "left", overflow="fold")
    for entry in entries[:AUDIT_ROWS]:
        cells = (entry.problem_id, entry.gold, entry.answer, str(entry.count), entry.why)
        table.add_row(*(Text(cell) for cell in cells))  # Text: brackets in an answer are no markup
    Console().print(table)
    if len(entries) > AUDIT_ROWS:
        print(f"and {len(entries) - AUDIT_ROWS} more; all are in samples.jsonl")
