"""gtpo compare"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gtpo_cli.cli.eval_tables import number, shown, words
from gtpo_cli.cli.runs import suggest
from gtpo_cli.text import markdown_sentence, one_line

if TYPE_CHECKING:
    from gtpo_cli.evaluation.store import StoredEvaluation
    from gtpo_cli.report.comparison import Comparison, Side

_SHOWN_PROBLEMS = 5
_QUESTION_WIDTH = 60
_FEW_PROBLEMS = 20  # with fewer a percentile bootstrap is too sure of itself

Say = Callable[[str], None]
Draw = Callable[[Sequence[str], Sequence[Sequence[str]], str], None]  # header, rows, justification of all but the first


def compare(
    sides: Annotated[
        list[str],
        typer.Argument(metavar="A B", help="Run folders; runs/a@base or runs/a@600 for one of its subjects."),
    ],
    benchmark: Annotated[str | None, typer.Option("--benchmark", "-b", metavar="NAME", help="Only this one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Markdown on standard output.")] = False,
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

    if as_json and as_markdown:
        raise typer.BadParameter("choose one of --json and --markdown")
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
    say, draw = _markdown() if as_markdown else _plain()
    for before, after, comparison in comparisons:
        _print(before, after, comparison, say, draw)
    _print_recipes(found, say, draw)
    _print_cautions([comparison for _, _, comparison in comparisons], say)
    if not as_markdown:
        suggest("report", *dict.fromkeys(str(side.run.path) for side in found))


# -- what is said -----------------------------------------------------------------------------------------------------


def _print(before: Side, after: Side, comparison: Comparison, say: Say, draw: Draw) -> None:
    say(f"\n{comparison.benchmark}: A = {_label(before, comparison.before)}, B = {_label(after, comparison.after)}")
    left_out = f"; {comparison.left_out} that only one side has are left out" if comparison.left_out else ""
    say(f"{comparison.shared} shared problems{left_out}")
    for note in comparison.notes:
        say(f"note: {note}")
    rows = [
        [
            words(row.score),
            number(row.score, row.before),
            number(row.score, row.after),
            shown(row.score, row.interval, difference=True),
            "*" if row.excludes_zero else "",
        ]
        for row in comparison.differences
    ]
    draw(("", "A", "B", "B - A (95 % interval)", ""), rows, "right")
    for sentence in _verdict(comparison):
        say(sentence)
    _print_only(comparison, say)


def _verdict(comparison: Comparison) -> list[str]:
    """In words: pass@1 over all completions, the first completion of each problem, how much of the table differs."""
    accuracy = next(row for row in comparison.differences if row.score == "accuracy")  # pass@1 is the mean accuracy
    low, high = sorted(abs(100 * value) for value in accuracy.interval[1:])
    size = abs(100 * accuracy.interval.estimate)
    problems = f"the {comparison.shared} shared problems"
    if accuracy.excludes_zero:
        more = "more" if accuracy.interval.estimate > 0 else "fewer"
        solved = f"B solves {size:.1f} percentage points {more} ({low:.1f} to {high:.1f}) of {problems} than A"
    else:
        difference = shown("accuracy", accuracy.interval, difference=True)
        solved = f"no significant difference on {problems}: B - A = {difference} percentage points"
    test = comparison.test
    marked, listed = sum(row.excludes_zero for row in comparison.differences), len(comparison.differences)
    return [
        f"pass@1, all completions: {solved}",
        f"pass@1, first completion only: A alone solves {test.only_before} problems, B alone {test.only_after}; "
        f"McNemar p = {test.p_value:.2g}" + ("" if test.p_value < 0.05 else ", no significant difference"),
        f"{marked} of the {listed} scores differ significantly (*: the interval excludes 0)"
        if marked
        else f"none of the {listed} scores differs significantly: every interval includes 0",
    ]


def _print_only(comparison: Comparison, say: Say) -> None:
    groups = (
        ("first completion right in A only", comparison.only_before),
        ("first completion right in B only", comparison.only_after),
        (f"solved by A, never by B in {comparison.after.conditions.samples} completions", comparison.never_after),
        (f"solved by B, never by A in {comparison.before.conditions.samples} completions", comparison.never_before),
    )
    problems = {problem.id: problem for problem in comparison.before.problems()}
    for title, ids in groups:
        lines = [f"{title}: {len(ids) or 'none'}"]
        for id_ in ids[:_SHOWN_PROBLEMS]:
            if id_ in problems:
                question = " ".join(problems[id_].question.split())
                cut = question if len(question) <= _QUESTION_WIDTH else question[: _QUESTION_WIDTH - 3] + "..."
                lines.append(f"- {one_line(id_)}  {cut}  gold {one_line(problems[id_].gold)}")
            else:  # samples.jsonl was removed
                lines.append(f"- {one_line(id_)}")
        if len(ids) > _SHOWN_PROBLEMS:
            lines.append(f"- and {len(ids) - _SHOWN_PROBLEMS} more (--json has all)")
        say("\n".join(lines))


def _print_recipes(sides: Sequence[Side], say: Say, draw: Draw) -> None:
    from gtpo_cli.report.comparison import recipe_differences

    runs = {str(side.run.path): side.run for side in sides}
    if len(runs) < 2:
        return
    differences = recipe_differences([run.recipe() for run in runs.values()])
    say("\nrecipes: " + ("keys that differ" if differences else "equal"))
    if differences:
        rows = [[key, *(json.dumps(value, ensure_ascii=False) for value in values)] for key, values in differences]
        draw(("", *runs), rows, "left")


def _print_cautions(comparisons: Sequence[Comparison], say: Say) -> None:
    listed = sum(len(comparison.differences) for comparison in comparisons)
    say(
        f"\n{listed} differences are listed: were there none in truth, by chance about {max(1, round(listed / 20))} "
        "would be marked *; decide beforehand which score counts. Intervals are over problems: how far another seed of "
        "the training would fall is not in them."
    )
    fewest = min(comparison.shared for comparison in comparisons)
    if fewest < _FEW_PROBLEMS:
        said = f"{fewest} shared problem{'s' if fewest > 1 else ''}"
        say(f"With {said} the intervals are too narrow and * means little: evaluate {_FEW_PROBLEMS} or more.")


# -- how it is drawn --------------------------------------------------------------------------------------------------


def _plain() -> tuple[Say, Draw]:
    """For the terminal; as wide as it needs to be when piped, so that nothing is folded."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from gtpo_cli.tracking.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=100_000)

    def draw(header: Sequence[str], rows: Sequence[Sequence[str]], justify: str) -> None:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column, name in enumerate(header):
            table.add_column(Text(name), justify="right" if column and justify == "right" else "left", overflow="fold")
        for row in rows:
            style = "bold" if row[-1] == "*" else ""
            table.add_row(*(Text(cell, style=style) for cell in row))  # Text: brackets are no markup
        console.print(table)

    return console.print, draw


def _markdown() -> tuple[Say, Draw]:
    def draw(header: Sequence[str], rows: Sequence[Sequence[str]], justify: str) -> None:
        aligned = ["---"] + ["---:" if justify == "right" else "---"] * (len(header) - 1)
        for line in (header, aligned, *rows):
            print("| " + " | ".join(markdown_sentence(one_line(cell, most=1000)) for cell in line) + " |")
        print()

    def say(text: str) -> None:
        print(markdown_sentence(text.strip()).replace("*", r"\*"), end="\n\n")

    return say, draw


# -- what is written --------------------------------------------------------------------------------------------------


def _label(side: Side, stored: StoredEvaluation) -> str:
    return f"{side.run.path} {stored.conditions.subject}"


def _document(before: Side, after: Side, comparison: Comparison) -> dict[str, Any]:
    from gtpo_cli.report.comparison import recipe_differences

    recipes = recipe_differences([before.run.recipe(), after.run.recipe()])
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
        "recipe_differences": {key: {"a": values[0], "b": values[1]} for key, values in recipes},
    }
