"""One self-contained HTML file about one or more runs, and the same charts and tables as files for papers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gtpo_cli.errors import EvaluationError
from gtpo_cli.estimators import Interval
from gtpo_cli.evaluation.records import EvaluatedCompletion
from gtpo_cli.files import own_folder
from gtpo_cli.recipe import dump_recipe
from gtpo_cli.report.charts import evaluation_charts, style, training_charts
from gtpo_cli.report.comparison import recipe_differences
from gtpo_cli.report.figures import Chart, page_svg, write_charts
from gtpo_cli.report.inspection import read_rows, stored_steps
from gtpo_cli.report.runs import BASE, RunRecord
from gtpo_cli.report.tables import benchmark_table, csv_text, latex, markdown, other_scores, other_scores_table
from gtpo_cli.run_folder import write_atomically
from gtpo_cli.training.summary import changes


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion worth showing: what it is an example of, the problem, and the text."""

    kind: str
    question: str
    gold: str
    answer: str | None
    text: str


def write_report(runs: Sequence[RunRecord], folder: Path) -> Path:
    """Write report.html, charts/*.svg and *.png, and table.md, .csv, .tex; the path of the page.

    Files of an earlier report are replaced, others are left alone. The same runs give the same page, byte for byte.
    Raises EvaluationError when the folder cannot be written.
    """
    charts = [*training_charts(runs), *evaluation_charts(runs)]
    try:
        own_folder(folder)
        write_charts(charts, folder / "charts")
        if any(run.evaluations for run in runs):
            table = benchmark_table(runs)
            write_atomically(folder / "table.md", markdown(table))
            write_atomically(folder / "table.tex", latex(table))
            write_atomically(folder / "table.csv", csv_text(runs))
        page = folder / "report.html"
        write_atomically(page, render(runs, charts))
    except OSError as error:
        raise EvaluationError(
            f"{folder}: the report cannot be written ({error.strerror or error}); name a folder with --out"
        ) from error
    return page


def render(runs: Sequence[RunRecord], charts: Sequence[Chart]) -> str:
    """The page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("gtpo_cli.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["interval"] = _shown_interval
    return environment.get_template("report.html.j2").render(
        title="gtpo: " + ", ".join(run.name for run in runs),
        runs=[_run(index, run) for index, run in enumerate(runs)],
        charts=[(chart, Markup(page_svg(chart))) for chart in charts],  # our own drawing
        table=benchmark_table(runs),
        scores=other_scores_table(runs),
        score_units=[unit for *_, unit in other_scores(runs)],
        differences=recipe_differences([run.recipe for run in runs]) if len(runs) > 1 else [],
    )


def _run(index: int, run: RunRecord) -> dict[str, Any]:
    """What the page shows of one run."""
    recipe = run.recipe
    colour, line = style(index)
    found = changes(run.rows)
    parts = [f"Training: means of the first and the last {found[0].steps} steps"] if found else []
    if run.evaluations:
        parts.append("Test: accuracy over all completions (95 % interval)")
    return {
        "name": run.name,
        "method": run.method,
        "model": recipe.model.name,
        "data": recipe.data.benchmark,
        "steps": int(run.rows[-1]["step"]) if run.rows else 0,
        "seed": recipe.seed,
        "started": str(run.environment.get("started", ""))[:10],
        "initial_entropy": run.initial_entropy,
        "changes": [
            (change.words, f"{change.shown.format(change.first)} → {change.shown.format(change.last)}")
            for change in found
        ],
        "changes_over": "; ".join(parts),
        "colour": colour,
        "dashes": {"-": "", "--": "6 3", "-.": "6 2 1 2", ":": "1 2"}[line],
        "evaluated": list(_headlines(run)),
        "recipe": dump_recipe(recipe),
        "environment": json.dumps(run.environment, indent=2) if run.environment else None,
        "samples": list(_samples(run)),
    }


def _headlines(run: RunRecord) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Benchmark, and the accuracy of the untrained model (where that was evaluated) and of the newest checkpoint."""
    by_subject = {(e.conditions.benchmark, e.conditions.subject): e for e in run.evaluations}
    for benchmark in dict.fromkeys(e.conditions.benchmark for e in run.evaluations):
        subjects = [subject for name, subject in by_subject if name == benchmark]
        shown = [*(s for s in subjects if s == BASE), *[s for s in subjects if s != BASE][-1:]]
        scores = [(s, by_subject[benchmark, s].results.scores["accuracy"].interval) for s in shown]
        yield benchmark, [(subject, _shown_interval(interval)) for subject, interval in scores]


def _shown_interval(interval: Interval, unit: str = "%") -> str:
    """`93.1 (91.0 to 95.0)`."""
    factor, digits = (100, 1) if unit == "%" else (1, 3 if unit in ("nats", "points") else 1)
    estimate, low, high = (factor * value for value in interval)
    return f"{estimate:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _samples(run: RunRecord) -> Iterator[Sample]:
    """A right, a wrong and an unfinished or unparsable completion: of the newest stored step, and of evaluations."""
    for evaluation in run.evaluations:
        where = f"{evaluation.conditions.benchmark}, {evaluation.conditions.subject}"
        kinds: dict[str, Callable[[EvaluatedCompletion], bool]] = {
            "right": lambda c: c.correct,
            "wrong": lambda c: c.parsable and not c.correct,
            "truncated": lambda c: c.truncated,
            "without an answer": lambda c: not c.truncated and not c.parsable,
        }
        for kind, holds in kinds.items():
            found = next(((p, c) for p in evaluation.stored.problems() for c in p.completions if holds(c)), None)
            if found is not None:
                problem, completion = found
                yield Sample(f"{where}: {kind}", problem.question, problem.gold, completion.answer, completion.text)
    stored = stored_steps(run.run)
    if stored:
        rows = read_rows(run.run, stored[-1])
        for kind, right in (("rewarded", True), ("not rewarded", False)):
            row = next((row for row in rows if (row.advantage > 0) == right), None)
            if row is not None:
                yield Sample(f"training, step {stored[-1]}: {kind}", row.question, row.gold, row.extracted, row.text)
