"""The benchmark table in the shape of the paper's Table 1, as rows, Markdown, CSV and LaTeX.

One row for each benchmark, estimator and model; one column for each k. The paper prints percentages of the first k
completions; here unbiased pass@k and first-k pass@k are rows of their own, so that neither passes for the other.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from gtpo_cli.estimators import Interval
from gtpo_cli.evaluation.records import is_user_reward
from gtpo_cli.report.charts import evaluated_series
from gtpo_cli.report.runs import BASE, Evaluation, RunRecord
from gtpo_cli.text import markdown_text, one_line

ESTIMATORS = (("pass", "pass@k"), ("first_pass", "first-k pass@k"), ("maj", "maj@k"))
OTHER_SCORES = (
    ("accuracy", "accuracy", "%"),
    ("format_rate", "format", "%"),
    ("strict_format_rate", "strict format", "%"),
    ("truncated_share", "truncated", "%"),
    ("unparsable_share", "unparsable", "%"),
    ("timed_out_share", "out of time or memory", "%"),
    ("mean_entropy", "entropy", "nats"),
    ("mean_length", "length", "tokens"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A model's scores of one estimator on one benchmark: `cells` by k, None where it was not measured.

    `note`: index into the table's notes, None without one.
    """

    benchmark: str
    estimator: str
    method: str
    model: str
    cells: tuple[Interval | None, ...]
    best: tuple[bool, ...]
    note: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """`columns`: k, or the names of other scores. `notes`: how evaluations differ from the first of their benchmark."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def benchmark_table(runs: Sequence[RunRecord]) -> Table:
    """pass@k, first-k pass@k and maj@k of every model that was evaluated."""
    benchmarks = {name: _models(runs, name) for name in _benchmarks(runs)}
    every_k = sorted(
        {
            k
            for shown in benchmarks.values()
            for *_, e in shown
            for family, _ in ESTIMATORS
            for k in e.results.ks(family)
        }
    )
    rows: list[Row] = []
    notes: list[str] = []
    for benchmark, shown in benchmarks.items():
        noted = [_note(evaluation, shown[0][2], notes) for *_, evaluation in shown]
        for family, estimator in ESTIMATORS:
            lines = [[_score(evaluation, f"{family}@{k}") for k in every_k] for *_, evaluation in shown]
            best = _best(lines)
            rows += [
                Row(benchmark, estimator, method, model, tuple(line), tuple(marks), note)
                for (method, model, _), line, marks, note in zip(shown, lines, best, noted, strict=True)
                if any(line)
            ]
    return Table(tuple(map(str, every_k)), tuple(rows), tuple(notes))


def other_scores(runs: Sequence[RunRecord]) -> list[tuple[str, str, str]]:
    """(score, words, unit) of the columns of `other_scores_table`: OTHER_SCORES, and each user reward there is."""
    names = (name for run in runs for evaluation in run.evaluations for name in evaluation.results.scores)
    return [*OTHER_SCORES, *((name, name, "points") for name in dict.fromkeys(names) if is_user_reward(name))]


def other_scores_table(runs: Sequence[RunRecord]) -> Table:
    """Accuracy, format, truncated, unparsable, entropy, length and user rewards of every model that was evaluated."""
    columns = other_scores(runs)
    rows = []
    for benchmark in _benchmarks(runs):
        for method, model, evaluation in _models(runs, benchmark):
            cells = tuple(_score(evaluation, name) for name, *_ in columns)
            rows.append(Row(benchmark, "", method, model, cells, (False,) * len(cells)))
    return Table(tuple(f"{words} ({unit})" for _, words, unit in columns), tuple(rows))


def markdown(table: Table) -> str:
    """GitHub's table syntax; best of each column bold; intervals in brackets."""
    lines = ["| benchmark | estimator | method | model | " + " | ".join(f"k = {k}" for k in table.columns) + " |"]
    lines.append("|---" * 4 + "|---:" * len(table.columns) + "|")
    for row in table.rows:
        cells = [
            "" if cell is None else f"{_bold(_percent(cell.estimate), best, '**')} ({_range(cell)})"
            for cell, best in zip(row.cells, row.best, strict=True)
        ]
        names = [markdown_text(name) for name in (row.benchmark, row.estimator, row.method, row.model)]
        names[3] += _mark(row, "[{}]")
        lines.append("| " + " | ".join((*names, *cells)) + " |")
    lines += ["", "Percent; in brackets 95 % bootstrap intervals over problems."]
    lines += [f"[{number}] {markdown_text(note)}" for number, note in enumerate(table.notes, start=1)]
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """A booktabs table; best of each column bold; intervals in small print."""
    lines = [r"\begin{tabular}{llll" + "r" * len(table.columns) + "}", r"\toprule"]
    lines.append(
        " & ".join(("Benchmark", "Estimator", "Method", "Model", *(f"$k={k}$" for k in table.columns))) + r" \\"
    )
    before = None
    for row in table.rows:
        if (row.benchmark, row.estimator) != before:
            lines.append(r"\midrule")
        before = (row.benchmark, row.estimator)
        cells = [
            "" if cell is None else _latex_cell(cell, best) for cell, best in zip(row.cells, row.best, strict=True)
        ]
        names = [escape_latex(name) for name in (row.benchmark, row.estimator, row.method, row.model)]
        names[3] += _mark(row, r"\textsuperscript{{{}}}")
        lines.append(" & ".join((*names, *cells)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [f"% [{number}] {one_line(note)}" for number, note in enumerate(table.notes, start=1)]
    return "% needs \\usepackage{booktabs}; percent, 95 % bootstrap intervals over problems\n" + "\n".join(lines) + "\n"


def csv_text(runs: Sequence[RunRecord]) -> str:
    """Every score of every evaluation in full precision, one a line."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["benchmark", "split", "method", "model", "subject", "problems", "samples", "temperature", "score", "estimate",
         "low_95", "high_95"]
    )  # fmt: skip
    for benchmark in _benchmarks(runs):
        for method, model, evaluation in _models(runs, benchmark):
            c = evaluation.conditions
            for name, score in evaluation.results.scores.items():
                writer.writerow(
                    [*map(csv_cell, (benchmark, c.split, method, model, c.subject)), c.problems, c.samples,
                     c.temperature, csv_cell(name), *map(repr, score.interval)]
                )  # fmt: skip
    return stream.getvalue()


def csv_cell(text: str) -> str:
    """Text on one line that no spreadsheet takes for a formula."""
    text = one_line(text)
    return "'" + text if text.startswith(("=", "+", "-", "@")) else text


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is, on one line."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: "\\" + character for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in one_line(text))


def _benchmarks(runs: Sequence[RunRecord]) -> list[str]:
    return list(dict.fromkeys(e.conditions.benchmark for run in runs for e in run.evaluations))


def _models(runs: Sequence[RunRecord], benchmark: str) -> list[tuple[str, str, Evaluation]]:
    """(method, model, evaluation) of everything evaluated on a benchmark."""
    owners = {id(evaluation): run for run in runs for evaluation in run.evaluations}
    models = []
    for (label, *_), evaluation in evaluated_series(runs, benchmark):
        if evaluation.conditions.subject == BASE:
            models.append(("base", evaluation.conditions.model, evaluation))
        else:
            models.append((owners[id(evaluation)].method, f"{label} {evaluation.conditions.subject}", evaluation))
    return models


def _score(evaluation: Evaluation, name: str) -> Interval | None:
    score = evaluation.results.scores.get(name)
    return None if score is None else score.interval


def _best(lines: Sequence[Sequence[Interval | None]]) -> list[list[bool]]:
    """Which cells hold the highest estimate of their column, where there is more than one line to compare."""
    marks = [[False] * len(line) for line in lines]
    for column in range(len(lines[0])):
        cells = [(line[column], row) for row, line in enumerate(lines)]
        values = [(cell.estimate, row) for cell, row in cells if cell is not None]
        if len(values) > 1:
            top = max(value for value, _ in values)
            for value, row in values:
                marks[row][column] = value == top
    return marks


def _note(evaluation: Evaluation, first: Evaluation, notes: list[str]) -> int | None:
    """The number of the note that says how an evaluation's conditions differ from the first one's."""
    one, other = first.conditions, evaluation.conditions
    keys = (
        "data_digest", "problems", "samples", "temperature", "top_p", "max_completion_tokens", "format_mode", "tags",
        "equality", "reject_copied",
    )  # fmt: skip
    differ = [
        f"{key} {getattr(other, key)}, not {getattr(one, key)}"
        for key in keys
        if getattr(one, key) != getattr(other, key)
    ]
    if one.system_prompt != other.system_prompt:
        differ.append("another system prompt")
    if not differ:
        return None
    text = f"evaluated differently from the first row of {one.benchmark}: " + "; ".join(differ)
    if text not in notes:
        notes.append(text)
    return notes.index(text) + 1


def _mark(row: Row, pattern: str) -> str:
    return "" if row.note is None else " " + pattern.format(row.note)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _range(cell: Interval) -> str:
    return f"{_percent(cell.low)} to {_percent(cell.high)}"


def _bold(text: str, best: bool, mark: str) -> str:
    return f"{mark}{text}{mark}" if best else text


def _latex_cell(cell: Interval, best: bool) -> str:
    value = _percent(cell.estimate)
    value = rf"\textbf{{{value}}}" if best else value
    return rf"{value} {{\scriptsize ({_percent(cell.low)}--{_percent(cell.high)})}}"
