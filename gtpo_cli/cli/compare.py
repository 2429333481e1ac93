"""gtpo compare"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gtpo_cli.cli.eval_tables import number, shown, words
from gtpo_cli.cli.runs import suggest

if TYPE_CHECKING:
    from gtpo_cli.evaluation.store import StoredEvaluation
    from gtpo_cli.report.comparison import Comparison, Side

_SHOWN_PROBLEMS = 5
_QUESTION_WIDTH = 60


def compare(
    sides: Annotated[
        list[str],
        typer.Argument(metavar="A B...", help="Run folders; runs/a@base or runs/a@step-000600 for one of its"),
    ],
    benchmark: Annotated[str | None, typer.Option("--benchmark", "-b", metavar="NAME", help="Only this one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Is B better than A, and by how much? Evaluated runs side by side on the problems they share.

    Differences are B - A, paired by problem, with 95 % bootstrap intervals; further runs are compared with A too. Of
    each run its newest evaluated checkpoint is taken.

    gtpo compare runs/grpo runs/gtpo

    gtpo compare runs/gtpo@base runs/gtpo
    """
    from gtpo_cli.errors import EvaluationError
    from gtpo_cli.report.comparison import compare as compare_sides
    from gtpo_cli.report.comparison import find_side

    if len(sides) < 2:
        raise EvaluationError(
            f"compare needs two sides: gtpo compare OTHER {sides[0]}, or with the model it started from: "
            f"gtpo compare {sides[0]}@base {sides[0]}"
        )
    found = [find_side(text) for text in sides]
    comparisons = [
        (found[0], other, comparison)
        for other in found[1:]
        for comparison in compare_sides(found[0], other, benchmark=benchmark)
    ]
    if as_json:
        print(json.dumps([_document(*comparison) for comparison in comparisons]))
        return
    for before, after, comparison in comparisons:
        _print(before, after, comparison)
    _print_recipes(found)
    suggest("report", *dict.fromkeys(str(side.run.path) for side in found))


def _print(before: Side, after: Side, comparison: Comparison) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    print(
        f"\n{comparison.benchmark}: A = {_label(before, comparison.before)}, B = {_label(after, comparison.after)}\n"
        f"{comparison.shared} shared problems"
        + (f"; {comparison.left_out} that only one side has are left out" if comparison.left_out else "")
    )
    for note in comparison.notes:
        print(f"note: {note}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "A", "B", "B - A (95 % interval)", ""):
        table.add_column(column, justify="right" if column else "left")
    for row in comparison.differences:
        difference = shown(row.score, row.interval, difference=True)
        star = "*" if row.excludes_zero else ""
        table.add_row(words(row.score), number(row.score, row.before), number(row.score, row.after), difference, star)
    Console(soft_wrap=True).print(table)
    print(f"* the interval excludes 0. {len(comparison.differences)} scores are listed: by chance about one in twenty")
    print(
        "intervals of scores that do not differ would exclude it. They are over problems: how far another seed of the"
    )
    print("training would fall is not in them.")
    print(_verdict(comparison))
    _print_only(comparison)


def _verdict(comparison: Comparison) -> str:
    """What the first completion of each problem says, in words."""
    test = comparison.test
    counts = f"A alone solves {test.only_before} of {comparison.shared} problems, B alone {test.only_after}"
    p_value = f"McNemar p = {test.p_value:.2g}"
    if test.p_value >= 0.05:
        return f"pass@1, first completion: {counts}; that is no significant difference ({p_value})"
    better = "B" if test.only_after > test.only_before else "A"
    return f"pass@1, first completion: {counts}; {better} is better ({p_value})"


def _print_only(comparison: Comparison) -> None:
    groups = (
        ("first completion right in A only", comparison.only_before),
        ("first completion right in B only", comparison.only_after),
        (f"solved by A, never by B in {comparison.after.conditions.samples} completions", comparison.never_after),
        (f"solved by B, never by A in {comparison.before.conditions.samples} completions", comparison.never_before),
    )
    shown = {id_ for _, ids in groups for id_ in ids[:_SHOWN_PROBLEMS]}
    problems = {problem.id: problem for problem in comparison.before.problems() if problem.id in shown}
    for title, ids in groups:
        print(f"{title}: {len(ids) or 'none'}")
        for id_ in ids[:_SHOWN_PROBLEMS]:
            question = " ".join(problems[id_].question.split())
            cut = question if len(question) <= _QUESTION_WIDTH else question[: _QUESTION_WIDTH - 3] + "..."
            print(f"    {id_}  {cut}  gold {problems[id_].gold}")
        if len(ids) > _SHOWN_PROBLEMS:
            print(f"    and {len(ids) - _SHOWN_PROBLEMS} more (--json has all)")


def _print_recipes(sides: Sequence[Side]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gtpo_cli.report.comparison import recipe_differences

    runs = {str(side.run.path): side.run for side in sides}
    if len(runs) < 2:
        return
    rows = recipe_differences([run.recipe() for run in runs.values()])
    print("\nrecipes: " + ("equal" if not rows else "keys that differ"))
    if rows:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("", *runs):
            table.add_column(column, overflow="fold")
        for key, values in rows:
            table.add_row(key, *(Text(json.dumps(value)) for value in values))
        Console(soft_wrap=True).print(table)


def _label(side: Side, stored: StoredEvaluation) -> str:
    return f"{side.run.path} {stored.conditions.subject}"


def _document(before: Side, after: Side, comparison: Comparison) -> dict[str, Any]:
    return {
        "benchmark": comparison.benchmark,
        "a": {"run": str(before.run.path), "subject": comparison.before.conditions.subject},
        "b": {"run": str(after.run.path), "subject": comparison.after.conditions.subject},
        "problems": comparison.shared,
        "left_out": comparison.left_out,
        "notes": list(comparison.notes),
        "scores": {
            row.score: {
                "a": row.before,
                "b": row.after,
                "difference": row.interval.estimate,
                "interval_95": [row.interval.low, row.interval.high],
            }
            for row in comparison.differences
        },
        "mcnemar": comparison.test._asdict(),
        "first_right_in_a_only": list(comparison.only_before),
        "first_right_in_b_only": list(comparison.only_after),
        "never_solved_by_b": list(comparison.never_after),
        "never_solved_by_a": list(comparison.never_before),
    }
