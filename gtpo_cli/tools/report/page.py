"""Write a self-contained HTML file about one or more runs, and its charts and tables as files for papers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from gtpo_cli.errors import EvaluationError
from gtpo_cli.evaluation.store import EvaluatedCompletion, EvaluatedProblem
from gtpo_cli.pages import filled
from gtpo_cli.pages.figures import DASHES, Chart, write_charts
from gtpo_cli.pages.run_charts import evaluation_charts, on_page, style, training_charts
from gtpo_cli.pages.run_record import BASE, RunRecord
from gtpo_cli.recipe import dump_recipe
from gtpo_cli.recipe.section import recipe_differences
from gtpo_cli.rewards.extract import NO_ANSWER
from gtpo_cli.runs.files import own_folder, write_aside, writing
from gtpo_cli.text import counted
from gtpo_cli.tools.report.comparison import unlike
from gtpo_cli.tools.report.inspection import StoredCompletion, read_completions, stored_steps
from gtpo_cli.tools.report.tables import (
    benchmark_table,
    csv_text,
    markdown,
    other_scores_table,
    score_interval,
    score_number,
    score_unit,
    score_words,
)
from gtpo_cli.tracking import changes

_KINDS: dict[str, Callable[[EvaluatedCompletion], bool]] = {
    "right": lambda c: c.correct,
    "wrong": lambda c: c.answer is not None and not c.correct,
    "truncated": lambda c: c.truncated,
    "without an answer": lambda c: not c.truncated and c.answer is None,
}


class Sample(NamedTuple):
    """A completion to show: its kind, the problem, and the text."""

    kind: str
    question: str
    gold: str
    answer: str | None
    text: str


def write_report(runs: Sequence[RunRecord], folder: Path) -> Path:
    """Write report.html, charts/*.svg and *.png, table.md and table.csv, and return the path of the page.

    Files of an earlier report are replaced; others are left alone. The same runs give exactly the same page. Raises
    EvaluationError if the folder cannot be written.
    """
    charts = [*training_charts(runs), *evaluation_charts(runs)]
    page = folder / "report.html"
    remedy = "name a folder with --out"
    with writing(lambda why: EvaluationError(f"{folder}: the report cannot be written ({why}); {remedy}")):
        own_folder(folder)
        write_charts(charts, folder / "charts")
        if any(run.evaluations for run in runs):
            table = benchmark_table(runs)
            write_aside(folder / "table.md", markdown(table))
            write_aside(folder / "table.csv", csv_text(runs))
        write_aside(page, render(runs, charts))
    return page


def render(runs: Sequence[RunRecord], charts: Sequence[Chart]) -> str:
    """Render the page."""
    return filled(
        "gtpo_cli.tools.report",
        "report.html.j2",
        title="gtpo: " + ", ".join(run.name for run in runs),
        runs=runs,
        **on_page(charts),
        table=benchmark_table(runs),
        scores=other_scores_table(runs),
        style=style,
        dashes=DASHES,
        changes=changes,
        headlines=_headlines,
        no_answer=NO_ANSWER,
        samples=_samples,
        before_and_after=before_and_after,
        dump_recipe=dump_recipe,
        as_json=partial(json.dumps, indent=2),
        score_words=score_words,
        score_unit=score_unit,
        score_number=score_number,
        differences=recipe_differences([run.recipe for run in runs]) if len(runs) > 1 else [],
    )


def _headlines(run: RunRecord) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each benchmark and split with the accuracy of the untrained model, if evaluated, and of the newest
    checkpoint."""
    for measured in dict.fromkeys((e.conditions.benchmark, e.conditions.split) for e in run.evaluations):
        scores = {
            e.conditions.subject: score_interval("accuracy", e.results.scores["accuracy"].interval, unit=False)
            for e in run.evaluations
            if (e.conditions.benchmark, e.conditions.split) == measured
        }
        newest = list(scores)[-1]
        yield " ".join(measured), {subject: shown for subject, shown in scores.items() if subject in (BASE, newest)}


def _samples(run: RunRecord) -> Iterator[Sample]:
    """Yield examples of each kind of completion, from evaluations and from the newest stored step."""
    for evaluation in run.evaluations:
        where = f"{evaluation.conditions.benchmark}, {evaluation.conditions.subject}"
        pairs = [(problem, c) for problem in evaluation.stored.problems() for c in problem.completions]
        for kind, holds in _KINDS.items():
            for problem, c in [pair for pair in pairs if holds(pair[1])][:1]:
                yield Sample(f"{where}: {kind}", problem.question, problem.gold, c.answer, c.text)
    for step in stored_steps(run.run)[-1:]:
        rows = read_completions(run.run, step)
        for kind, right in (("rewarded", True), ("not rewarded", False)):
            for row in [row for row in rows if (row.advantage > 0) == right][:1]:
                yield Sample(f"training, step {step}: {kind}", row.question, row.gold, row.extracted, row.text)


class Answer(NamedTuple):
    """An answer to a question. `when`: the words for the state of training."""

    when: str
    question: str
    gold: str
    text: str
    answer: str | None
    right: bool


class Pair(NamedTuple):
    """An answer before training and one after it. `note`: which question this is."""

    before: Answer
    after: Answer
    note: str

    @property
    def same(self) -> bool:
        return self.before.question == self.after.question


def before_and_after(run: RunRecord) -> Pair | None:
    """Return a pair from evaluations of the untrained and the trained model, else from the first and the last stored
    step; None if the run has neither."""
    return _evaluated(run) or _trained(run)


def _evaluated(run: RunRecord) -> Pair | None:
    base = [one for one in run.evaluations if one.conditions.subject == BASE]
    trained = [one for one in run.evaluations if one.conditions.subject != BASE]
    for later, earlier in product(reversed(trained), reversed(base)):
        if unlike(earlier.stored, later.stored):
            continue
        known = {(one.id, one.question, one.gold): one for one in earlier.stored.problems()}
        asked = {(one.id, one.question, one.gold): one for one in later.stored.problems()}
        if pairs := [(known[key], one) for key, one in asked.items() if key in known]:
            measured = f"{later.conditions.benchmark} {later.conditions.split}"
            return _first_change(pairs, measured, later.conditions.subject)
    return None


def _first_change(pairs: Sequence[tuple[EvaluatedProblem, EvaluatedProblem]], measured: str, subject: str) -> Pair:
    """The first question of which one first completion is right and the other is not; without one, the first."""
    right = [tuple(one.completions[0].correct for one in pair) for pair in pairs]
    place = next((place for place, (was, now) in enumerate(right) if was != now), 0)
    before, after = (
        Answer(when, one.question, one.gold, first.text, first.answer, first.correct)
        for when, one in zip(("before training", subject), pairs[place], strict=True)
        for first in one.completions[:1]
    )
    note = (
        f"{measured}, first completions: of {counted(len(pairs), 'question')}, {right.count((False, True))} "
        f"became right and {right.count((True, False))} became wrong. This is the first"
    )
    return Pair(before, after, note + (" that changed." if before.right != after.right else "."))


def _trained(run: RunRecord) -> Pair | None:
    steps = stored_steps(run.run)
    if len(steps) < 2:
        return None
    early, late = (
        {row.question: row for row in reversed(read_completions(run.run, step))} for step in (steps[0], steps[-1])
    )
    if not early or not late:
        return None
    both = next((question for question in early if question in late), None)
    note = "A training question that was stored both early and late; the first of its completions."
    if both is None:
        note = "Two training questions, for none was stored both early and late. gtpo eval --base asks the same ones."
    before, after = (
        _answer(f"step {step}", rows[both if both is not None else list(rows)[-1]])
        for step, rows in ((steps[0], early), (steps[-1], late))
    )
    return Pair(before, after, note)


def _answer(when: str, row: StoredCompletion) -> Answer:
    return Answer(when, row.question, row.gold, row.text, row.extracted, row.correct)
