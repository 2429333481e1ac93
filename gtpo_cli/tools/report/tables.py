"""The benchmark table like the paper's Table 1, as rows, Markdown and CSV, and the formatting of scores.

It has a row for each benchmark, estimator and model, and a column for each k. The paper prints percentages of the first
k completions. Here unbiased pass@k and first-k pass@k have separate rows, so that nobody confuses them.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gtpo_cli.estimators import Interval, macro_average
from gtpo_cli.evaluation.store import Results, is_reward
from gtpo_cli.pages.run_record import Evaluation, RunRecord, evaluated
from gtpo_cli.text import markdown_table, markdown_text, one_line
from gtpo_cli.tracking import reward_words

ESTIMATORS = (("pass", "pass@k"), ("first_pass", "first-k pass@k"), ("maj", "maj@k"), ("best", "best score of k"))
# Scores without k: name and unit. Shares are shown in percent.
SCORES = {
    "accuracy": ("accuracy", "%"),
    "score": ("score", "%"),
    "format_rate": ("format", "%"),
    "strict_format_rate": ("strict format", "%"),
    "truncated_share": ("truncated", "%"),
    "unparsable_share": ("unparsable", "%"),
    "timed_out_share": ("out of time or memory", "%"),
    "mean_entropy": ("entropy", "nats"),
    "mean_length": ("length", "tokens"),
}
MEAN_OF_PARTS = "mean of these"  # a macro-average
_Cells = tuple[Interval | None, ...]
_DIGITS = {"%": 1, "tokens": 1, "nats": 3, "points": 3}


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A model's scores of one estimator on one benchmark. `cells` by column, None if not measured. `best`: whether a
    cell is the highest of its column. `note`: the number of a note below the table."""

    benchmark: str
    estimator: str
    method: str
    model: str
    cells: _Cells
    best: tuple[bool, ...] = ()
    note: int | None = None


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """A table. `columns`: k, or names of scores. `notes`: how evaluations differ from the first of their benchmark."""

    columns: tuple[str, ...]
    rows: tuple[ScoreRow, ...]
    notes: tuple[str, ...] = ()


# -- formatting of scores ---------------------------------------------------------------------------------------------


def score_words(name: str) -> str:
    """Return a score's name for users."""
    if is_reward(name):
        return reward_words(name)
    return SCORES[name][0] if name in SCORES else name.replace("first_pass@", "first-k pass@")


def score_unit(name: str) -> str:
    """Return a score's unit: %, nats, tokens, or points for a user reward."""
    return "points" if is_reward(name) else SCORES.get(name, ("", "%"))[1]


def score_number(name: str, value: float, *, unit: bool = True, sign: bool = False) -> str:
    """Format a score: `93.1 %`, `0.161 nats`. `sign` adds a + to positive numbers."""
    name_of_unit = score_unit(name)
    shown = f"{100 * value if name_of_unit == '%' else value:{'+' if sign else ''}z.{_DIGITS[name_of_unit]}f}"
    return f"{shown} {name_of_unit}" if unit else shown


def score_interval(name: str, interval: Interval, *, unit: bool = True, sign: bool = False) -> str:
    """Format an interval: `93.1 % (91.0 to 95.0)`, or a difference, with signs and no unit: `+2.1 (-0.3 to +4.5)`.

    An open one is the estimate alone.
    """
    shown = score_number(name, interval.estimate, unit=unit, sign=sign)
    if not interval.is_bounded:
        return shown
    low, high = (score_number(name, value, unit=False, sign=sign) for value in interval[1:])
    return f"{shown} ({low} to {high})"


# -- tables -----------------------------------------------------------------------------------------------------------


def benchmark_table(runs: Sequence[RunRecord]) -> ScoreTable:
    """Return pass@k, first-k pass@k and maj@k of every evaluated model."""
    results = [evaluation.results for run in runs for evaluation in run.evaluations]
    every_k = sorted({k for result in results for family, _ in ESTIMATORS for k in result.ks(family)})
    rows: list[ScoreRow] = []
    notes: list[str] = []
    for benchmark, shown in evaluated(runs).items():
        noted = [_note(one.evaluation, shown[0].evaluation, notes) for one in shown]
        for family, estimator in ESTIMATORS:
            lines = [_cells(one.evaluation.results, [f"{family}@{k}" for k in every_k]) for one in shown]
            rows += [
                ScoreRow(benchmark, estimator, one.method, one.model, cells, best, note)
                for one, cells, best, note in zip(shown, lines, _best(lines), noted, strict=True)
                if any(cells)
            ]
    return ScoreTable(tuple(map(str, every_k)), tuple(rows), tuple(notes))


def other_scores_table(runs: Sequence[RunRecord]) -> ScoreTable:
    """Return the scores without k and the user rewards of every evaluated model. A mixture has a row for each part,
    too, and one for their means."""
    every = dict.fromkeys(n for run in runs for evaluation in run.evaluations for n in evaluation.results.scores)
    names = (*(name for name in SCORES if name in every), *filter(is_reward, every))
    rows: list[ScoreRow] = []
    for benchmark, shown in evaluated(runs).items():
        found: dict[str, list[ScoreRow]] = {}
        for one in shown:
            for part, cells in _by_part(benchmark, one.evaluation.results, names):
                found.setdefault(part, []).append(ScoreRow(part, "", one.method, one.model, cells))
        rows += itertools.chain.from_iterable(found.values())
    return ScoreTable(names, tuple(rows))


def markdown(table: ScoreTable) -> str:
    """Format a table for GitHub, with the best of each column in bold and intervals in brackets."""
    rows = []
    for row in table.rows:
        names = [markdown_text(name) for name in (row.benchmark, row.estimator, row.method, row.model)]
        names[3] += f" [{row.note}]" if row.note else ""
        rows.append([*names, *_formatted(row)])
    header = ["benchmark", "estimator", "method", "model", *(f"k = {k}" for k in table.columns)]
    lines = ["Percent; in brackets 95 % intervals over problems."]
    lines += [f"[{number}] {markdown_text(note)}" for number, note in enumerate(table.notes, start=1)]
    return "\n".join([markdown_table(header, rows, numbers=range(4, len(header))), *lines]) + "\n"


def csv_text(runs: Sequence[RunRecord]) -> str:
    """Write every score of every evaluation in full precision, one per line."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["benchmark", "split", "method", "model", "subject", "problems", "samples", "temperature", "score", "estimate",
         "low_95", "high_95"]
    )  # fmt: skip
    for benchmark, shown in evaluated(runs).items():
        for one in shown:
            c = one.evaluation.conditions
            for name, score in one.evaluation.results.scores.items():
                writer.writerow(
                    [*map(csv_cell, (benchmark, c.split, one.method, one.model, c.subject)), c.problems, c.samples,
                     c.temperature, csv_cell(name), *(repr(x) if math.isfinite(x) else "" for x in score.interval)]
                )  # fmt: skip
    return stream.getvalue()


def csv_cell(text: str) -> str:
    """Put text on one line, and protect it from being read as a formula by spreadsheets."""
    text = one_line(text)
    return "'" + text if text.startswith(("=", "+", "-", "@")) else text


def _cells(results: Results, names: Sequence[str]) -> _Cells:
    return tuple(results.scores[name].interval if name in results.scores else None for name in names)


def _by_part(benchmark: str, results: Results, names: Sequence[str]) -> Iterator[tuple[str, _Cells]]:
    """Yield the scores on a benchmark; of a mixture also those of its parts, and the means of the parts."""
    yield benchmark, _cells(results, names)
    parts = [(part, _cells(results.part(set(ids)), names)) for part, ids in results.parts.items()]
    yield from parts
    if parts:
        columns = zip(*(cells for _, cells in parts), strict=True)
        yield MEAN_OF_PARTS, tuple(macro_average(column) if all(column) else None for column in columns)


def _best(lines: Sequence[Sequence[Interval | None]]) -> list[tuple[bool, ...]]:
    """Mark the cells with the highest estimate of their column, if the column has more than one."""
    tops = []
    for column in zip(*lines, strict=True):
        measured = [cell.estimate for cell in column if cell is not None]
        tops.append(max(measured) if len(measured) > 1 else None)
    return [tuple(c is not None and c.estimate == top for c, top in zip(line, tops, strict=True)) for line in lines]


def _formatted(row: ScoreRow) -> list[str]:
    """Format the cells in percent; "" for a cell that was not measured."""
    shown = []
    for interval, best in zip(row.cells, row.best, strict=True):
        estimate, low, high = (f"{100 * value:.1f}" for value in interval or (0.0, 0.0, 0.0))
        shown.append(f"{f'**{estimate}**' if best else estimate} ({low} to {high})" if interval else "")
    return shown


def _note(evaluation: Evaluation, first: Evaluation, notes: list[str]) -> int | None:
    """Return the number of the note on how conditions differ from the first evaluation's. Adds the note if new."""
    differ = [
        "another system prompt" if key == "data.system_prompt" else one_line(f"{key} {own}, not {other}")
        for key, other, own in first.conditions.differences(
            evaluation.conditions, "benchmark", "subject", "model", "seed", "weights"
        )
    ]
    if not differ:
        return None
    text = f"evaluated differently from the first row of {first.conditions.benchmark}: " + "; ".join(differ)
    if text not in notes:
        notes.append(text)
    return notes.index(text) + 1
