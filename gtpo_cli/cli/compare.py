"""gtpo compare"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gtpo_cli.cli.options import JsonOption, benchmark_names, complete_runs
from gtpo_cli.cli.printing import print_json, print_table, suggest
from gtpo_cli.errors import EvaluationError
from gtpo_cli.text import counted, one_line

if TYPE_CHECKING:
    from gtpo_cli.tools.report.comparison import Comparison, Difference, Side

_SHOWN_PROBLEMS = 5
_QUESTION_WIDTH = 60


def compare(
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="A B",
            help="Run folders; runs/a@base or runs/a@600 picks the base or a step; or folders of evaluations.",
            autocompletion=complete_runs,
        ),
    ],
    benchmark: Annotated[
        str | None,
        typer.Option("--benchmark", "-b", metavar="NAME", help="Only this benchmark.", autocompletion=benchmark_names),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare evaluated runs on the problems they share: is B better than A, and by how much?

    Differences are B - A, paired by problem, with 95 % intervals. Further runs are compared with A too. Each
    run is represented by its newest evaluated checkpoint.

    gtpo compare runs/grpo runs/gtpo

    gtpo compare runs/gtpo@base runs/gtpo
    """
    from gtpo_cli.tools.report.comparison import cautions, find_side
    from gtpo_cli.tools.report.comparison import compare as compare_sides

    if len(sides) < 2:
        raise EvaluationError(
            f"compare needs two runs: gtpo compare OTHER {sides[0]}, or with the model it started from: "
            f"gtpo compare {sides[0]}@base {sides[0]}"
        )
    before, *others = [find_side(text) for text in sides]
    pairs = [(other, found) for other in others for found in compare_sides(before, other, benchmark=benchmark)]
    if as_json:
        warnings = cautions([comparison for _, comparison in pairs])
        print_json({"comparisons": [_document(before, *pair) for pair in pairs], "cautions": warnings})
        return
    for after, comparison in pairs:
        _print(before, after, comparison)
    _print_recipes([before, *others])
    first, *rest = cautions([comparison for _, comparison in pairs])
    for sentence in (f"\n{first}", *rest):
        print(sentence)
    suggest("report", *dict.fromkeys(str(side.run.path) for side in (before, *others)))


def _print(before: Side, after: Side, comparison: Comparison) -> None:
    from gtpo_cli.tools.report.comparison import verdict

    a, b = comparison.before.conditions.subject, comparison.after.conditions.subject
    print(f"\n{comparison.benchmark}: A = {before.run.path} {a}, B = {after.run.path} {b}")
    left_out = f"; {comparison.left_out} that only one side has are left out" if comparison.left_out else ""
    print(f"{counted(comparison.shared, 'shared problem')}{left_out}")
    for note in comparison.notes:
        print(f"note: {note}")
    head = ("A", "B", "B - A (95 % interval)", "")
    print_table(("", *head), [_cells(row) for row in comparison.differences], numbers=range(1, 5))
    if comparison.parts:
        print()
        by_part = [[part, *_cells(row)] for part, rows in comparison.parts.items() for row in rows]
        print_table(("part", "", *head), by_part, numbers=range(2, 6))
    for sentence in (*verdict(comparison), *_only_one_side(comparison)):
        print(sentence)


def _cells(row: Difference) -> list[str]:
    from gtpo_cli.tools.report.tables import score_interval, score_number, score_words

    return [
        score_words(row.score),
        score_number(row.score, row.before),
        score_number(row.score, row.after),
        score_interval(row.score, row.interval, unit=False, sign=True),
        "*" if row.excludes_zero else "",
    ]


def _only_one_side(comparison: Comparison) -> Iterator[str]:
    """Yield how many problems only one side solves, and list the first of them."""
    of_a, of_b = (counted(side.conditions.samples, "completion") for side in (comparison.before, comparison.after))
    groups = (
        ("first completion right in A only", comparison.only_before),
        ("first completion right in B only", comparison.only_after),
        (f"solved by A, never by B in {of_b}", comparison.never_after),
        (f"solved by B, never by A in {of_a}", comparison.never_before),
    )
    problems = {problem.id: problem for problem in comparison.before.problems()}
    for title, ids in groups:
        lines = [f"{title}: {len(ids) or 'none'}"]
        for id_ in ids[:_SHOWN_PROBLEMS]:
            known = problems.get(id_)  # None if samples.jsonl was removed
            question = one_line(known.question, most=_QUESTION_WIDTH) if known else ""
            lines.append(f"- {one_line(id_)}" + (f"  {question}  gold {one_line(known.gold)}" if known else ""))
        if len(ids) > _SHOWN_PROBLEMS:
            lines.append(f"- and {len(ids) - _SHOWN_PROBLEMS} more (--json has all)")
        yield "\n".join(lines)


def _print_recipes(sides: Sequence[Side]) -> None:
    from gtpo_cli.recipe.section import recipe_differences

    runs = {str(side.run.path): side.run for side in sides}
    if len(runs) < 2:
        return
    differences = recipe_differences([run.recipe() for run in runs.values()])
    print("\nrecipes: " + ("keys that differ" if differences else "equal"))
    if differences:
        print_table(
            ("", *runs), [[key, *(json.dumps(v, ensure_ascii=False) for v in values)] for key, values in differences]
        )


def _scores(rows: Sequence[Difference]) -> dict[str, Any]:
    return {
        row.score: {
            "a": row.before,
            "b": row.after,
            "difference": row.interval.estimate,
            "interval_95": [row.interval.low, row.interval.high],
        }
        for row in rows
    }


def _document(before: Side, after: Side, comparison: Comparison) -> dict[str, Any]:
    from gtpo_cli.recipe.section import recipe_differences

    recipes = recipe_differences([before.run.recipe(), after.run.recipe()])
    return {
        "benchmark": comparison.benchmark,
        "a": {"run": before.run.path, "subject": comparison.before.conditions.subject},
        "b": {"run": after.run.path, "subject": comparison.after.conditions.subject},
        "problems": comparison.shared,
        "left_out": comparison.left_out,
        "notes": comparison.notes,
        "scores": _scores(comparison.differences),
        "parts": {part: _scores(rows) for part, rows in comparison.parts.items()},
        "mcnemar": comparison.test._asdict(),
        "first_right_in_a_only": comparison.only_before,
        "first_right_in_b_only": comparison.only_after,
        "never_solved_by_b": comparison.never_after,
        "never_solved_by_a": comparison.never_before,
        "recipe_differences": {key: {"a": values[0], "b": values[1]} for key, values in recipes},
    }
