"""One question before and after training, from what a run stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gtpo_cli.evaluation.records import EvaluatedProblem
from gtpo_cli.pages.run_record import BASE, RunRecord
from gtpo_cli.text import counted
from gtpo_cli.tools.report.inspection import StoredCompletion, read_completions, stored_steps


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
    base = {one.conditions.benchmark: one for one in run.evaluations if one.conditions.subject == BASE}
    for later in reversed(run.evaluations):
        earlier = base.get(later.conditions.benchmark)
        if earlier is None or later is earlier:
            continue
        known = {problem.question: problem for problem in earlier.stored.problems()}
        pairs = [(known[one.question], one) for one in later.stored.problems() if one.question in known]
        if pairs:
            return _first_change(pairs, later.conditions.benchmark, later.conditions.subject)
    return None


def _first_change(pairs: Sequence[tuple[EvaluatedProblem, EvaluatedProblem]], benchmark: str, subject: str) -> Pair:
    """The first question of which one first completion is right and the other is not; without one, the first."""
    right = [tuple(one.completions[0].correct for one in pair) for pair in pairs]
    place = next((place for place, (was, now) in enumerate(right) if was != now), 0)
    before, after = (
        Answer(when, one.question, one.gold, first.text, first.answer, first.correct)
        for when, one in zip(("before training", subject), pairs[place], strict=True)
        for first in one.completions[:1]
    )
    note = (
        f"{benchmark} test, first completions: of {counted(len(pairs), 'question')}, {right.count((False, True))} "
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
    return Answer(when, row.question, row.gold, row.text, row.extracted, row.right)
