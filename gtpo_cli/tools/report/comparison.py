"""Compare two evaluated runs on their shared problems: paired differences, and problems that only one run solves.

A side of a comparison is a run, one of its evaluated subjects, or one of its evaluations: `runs/a`, `runs/a@base`,
`runs/a@600`, `runs/a/evaluation/math/step-000600-n8-1a2b3c4d`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gtpo_cli.errors import EvaluationError
from gtpo_cli.estimators import Interval, McNemar, difference_interval, macro_average, mcnemar
from gtpo_cli.evaluation.store import COLUMNS, Results, StoredEvaluation, find_evaluations, is_share
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.text import counted, one_line, shown, some
from gtpo_cli.tools.report.tables import MEAN_OF_PARTS, score_interval

_SHOWN_IDS = 10
_ROUNDING = 1e-12  # the rounding error of a mean of differences that cancel


class Side(NamedTuple):
    """A run and the finished evaluations of one of its subjects by benchmark, oldest first."""

    name: str
    run: RunFolder
    evaluations: dict[str, list[StoredEvaluation]]


@dataclass(frozen=True, slots=True)
class Difference:
    """A score of both sides on the shared problems. `interval` is of the paired difference after - before."""

    score: str
    before: float
    after: float
    interval: Interval

    @property
    def excludes_zero(self) -> bool:
        return self.interval.low > _ROUNDING or self.interval.high < -_ROUNDING


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two evaluations of one benchmark. `shared`: number of compared problems. `left_out`: number of
    problems that only one side has.

    `parts`: the differences of the headlines by part of a mixture, and their macro-averages (empty without parts).

    McNemar's test and `only_before`, `only_after` (ids) are about the first completion of each problem. `never_before`
    and `never_after` list the ids of problems that this side never solves, but the other side solves. `notes`:
    conditions of sampling that differ.
    """

    benchmark: str
    before: StoredEvaluation
    after: StoredEvaluation
    shared: int
    left_out: int
    notes: tuple[str, ...]
    differences: tuple[Difference, ...]
    parts: Mapping[str, tuple[Difference, ...]]
    test: McNemar
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    never_after: tuple[str, ...]
    never_before: tuple[str, ...]


def find_side(text: str) -> Side:
    """Find the side of "runs/a@base" or "runs/a@600". "runs/a" means its newest evaluated checkpoint, or else the
    untrained model. Raises EvaluationError if the run or its evaluations are missing."""
    if (evaluation := Path(text)).parent.parent.name == "evaluation" and not (evaluation / "recipe.yaml").exists():
        return _side_of(evaluation)
    path, _, subject = text.rpartition("@") if "@" in text and not Path(text).exists() else (text, "", "")
    step = re.fullmatch(r"(?:step-)?([0-9]{1,12})", subject)
    subject = f"step-{int(step[1]):06d}" if step else subject
    run = RunFolder(Path(path))
    if not run.recipe_file.is_file():
        raise EvaluationError(f"{path}: is not a run folder (recipe.yaml is missing)")
    found = find_evaluations(run)
    subjects = sorted({stored.conditions.subject for stored in found})  # "base" < "step-..."
    if not subjects:
        raise EvaluationError(f"{path}: has no finished evaluation; make one: gtpo eval {path}")
    subject = subject or subjects[-1]
    if subject not in subjects:
        raise EvaluationError(f"{path}: {one_line(subject)} was not evaluated; choose from {some(subjects)}")
    side = Side(text, run, {})
    for stored in found:
        if stored.conditions.subject == subject:
            side.evaluations.setdefault(stored.conditions.benchmark, []).append(stored)
    return side


def _side_of(evaluation: Path) -> Side:
    """Return the side that has this evaluation alone."""
    run = RunFolder(evaluation.parents[2])
    for stored in find_evaluations(run):
        if stored.path.resolve() == evaluation.resolve():
            return Side(str(evaluation), run, {stored.conditions.benchmark: [stored]})
    raise EvaluationError(f"{evaluation}: is not a finished evaluation of {run.path}")


def compare(before: Side, after: Side, *, benchmark: str | None = None) -> list[Comparison]:
    """Compare all benchmarks (or the named one) that both sides were evaluated on. Raises EvaluationError if there is
    none, or like `compare_pair`."""
    one, other = before.evaluations, after.evaluations
    shared = [name for name in one if name in other and benchmark in (None, name)]
    if not shared:
        where = f"on {benchmark}" if benchmark else "on the same benchmark"
        raise EvaluationError(
            f"{before.name} and {after.name} were not both evaluated {where}: {before.name} on {', '.join(one)}; "
            f"{after.name} on {', '.join(other)}"
        )
    return [_compare_best(one[name], other[name]) for name in shared]


def _compare_best(before: Sequence[StoredEvaluation], after: Sequence[StoredEvaluation]) -> Comparison:
    """Compare the best match, and note which one it is where a side has several evaluations."""
    one, other = _best_match(before, after)
    comparison = compare_pair(one, other)
    if len(before) == len(after) == 1:
        return comparison
    which = f"compared are {one.path} and {other.path} of {len(before)} and {len(after)} evaluations"
    return replace(comparison, notes=(f"{which}; name the folders to compare others", *comparison.notes))


def compare_pair(before: StoredEvaluation, after: StoredEvaluation) -> Comparison:
    """Compare two finished evaluations of one benchmark on their shared problems, matched by id.

    Raises EvaluationError if a problem's question or gold answer differs, if no problem is shared, and if both are the
    same evaluation.
    """
    if before.path.resolve() == after.path.resolve():
        raise EvaluationError(
            f"{before.path}: both sides are this evaluation; name another run, or another subject of it: RUN@base "
            "after gtpo eval RUN --base, RUN@STEP after gtpo eval RUN --checkpoint STEP"
        )
    one, other = before.results(), after.results()
    ids = _shared_ids(before, one, after, other)
    names = [name for name in one.scores if name in other.scores]
    first_before, first_after = _solved(before, one, ids, first=True), _solved(after, other, ids, first=True)
    any_before, any_after = _solved(before, one, ids, first=False), _solved(after, other, ids, first=False)
    return Comparison(
        benchmark=before.conditions.benchmark,
        before=before,
        after=after,
        shared=len(ids),
        left_out=len(set(one.problem_ids) ^ set(other.problem_ids)),
        notes=tuple(f"{key} differs: {shown(a)} and {shown(b)}" for key, a, b in unlike(before, after)),
        differences=_differences(one, other, names, ids),
        parts=_by_part(one, other, [name for name in one.headlines if name in names], set(ids)),
        test=mcnemar(first_before, first_after),
        only_before=_where(ids, first_before, first_after),
        only_after=_where(ids, first_after, first_before),
        never_after=_where(ids, any_before, any_after),
        never_before=_where(ids, any_after, any_before),
    )


# -- sentences --------------------------------------------------------------------------------------------------------


def verdict(comparison: Comparison) -> list[str]:
    """Describe pass@1 of all and of first completions, and how many scores differ."""
    row = next(row for row in comparison.differences if row.score == "accuracy")  # its mean is pass@1
    accuracy = row.interval
    marked, listed = sum(row.excludes_zero for row in comparison.differences), len(comparison.differences)
    problems = f"the {counted(comparison.shared, 'shared problem')}"
    if row.excludes_zero:
        size, low, high = (f"{100 * value:.1f}" for value in (abs(accuracy.estimate), *sorted(map(abs, accuracy[1:]))))
        more = "more" if accuracy.estimate > 0 else "fewer"
        solved = f"B solves {size} percentage points {more} ({low} to {high}) of {problems} than A"
    else:
        difference = score_interval("accuracy", accuracy, unit=False, sign=True)
        solved = f"no significant difference on {problems}: B - A = {difference} percentage points"
    test, alone = comparison.test, counted(comparison.test.only_before, "problem")
    return [
        f"pass@1, all completions: {solved}",
        f"pass@1, first completion only: A alone solves {alone}, B alone {test.only_after}; "
        f"McNemar p = {test.p_value:.2g}" + ("" if test.p_value < 0.05 else ", no significant difference"),
        f"{marked} of the {listed} scores {'differs' if marked == 1 else 'differ'} significantly (*: the interval "
        "excludes 0)"
        if marked
        else f"none of the {listed} scores differs significantly: every interval includes 0",
    ]


def cautions(comparisons: Sequence[Comparison]) -> list[str]:
    """Warn about chance findings, training seeds, and changes that the problems are too few to show."""
    listed = sum(len(rows) for one in comparisons for rows in (one.differences, *one.parts.values()))
    warnings = [
        f"{listed} differences are listed. Even without a true difference, about {max(1, round(listed / 20))} would be "
        "marked * by chance, so decide beforehand which score counts. Intervals are over problems; they do not include "
        "the variation between training seeds."
    ]
    fewest = min(comparison.shared for comparison in comparisons)
    warnings.append(
        f"The intervals know what {counted(fewest, 'shared problem')} can show: a change in fewer than "
        f"{100 * (1 - 0.05 ** (1 / fewest)):.2g} % of all problems may be in none of them (chance 5 % or more)."
    )
    return warnings


# -- problems and evaluations -----------------------------------------------------------------------------------------


def unlike(before: StoredEvaluation, after: StoredEvaluation) -> list[tuple[str, Any, Any]]:
    """Return the conditions of sampling that differ; problems are compared one by one."""
    return before.conditions.differences(after.conditions, "subject", "weights", "problems", "data_digest", COLUMNS)


def _best_match(
    before: Sequence[StoredEvaluation], after: Sequence[StoredEvaluation]
) -> tuple[StoredEvaluation, StoredEvaluation]:
    """Choose the best pair of evaluations that share problems: on the test split, then most problems that both asked,
    then most completions, then conditions alike, then newest."""

    def worth(pair: tuple[int, int]) -> tuple[bool, bool, int, int, int, int]:
        one, other = before[pair[0]], after[pair[1]]
        asked, too = (set(zip(r.problem_ids, r.problem_digests, strict=True)) for r in (one.results(), other.results()))
        return (
            bool(asked & too),
            one.conditions.split == other.conditions.split == "test",
            len(asked & too),
            min(one.conditions.samples, other.conditions.samples),
            -len(unlike(one, other)),
            sum(pair),
        )

    one, other = max(((i, j) for i in range(len(before)) for j in range(len(after))), key=worth)
    return before[one], after[other]


def _shared_ids(before: StoredEvaluation, one: Results, after: StoredEvaluation, other: Results) -> list[str]:
    digests = dict(zip(other.problem_ids, other.problem_digests, strict=True))
    shared = [(id_, digest) for id_, digest in zip(one.problem_ids, one.problem_digests, strict=True) if id_ in digests]
    if not shared:
        raise EvaluationError(
            f"{before.path} and {after.path} have no problem in common; evaluate both on the same data"
        )
    differ = [id_ for id_, digest in shared if digests[id_] != digest]
    if differ:
        more = f" and {len(differ) - _SHOWN_IDS} more" if len(differ) > _SHOWN_IDS else ""
        raise EvaluationError(
            f"{before.path} and {after.path} were graded on different data: question or gold answer of {len(differ)} "
            f"of {len(shared)} shared problems differ: {', '.join(differ[:_SHOWN_IDS])}{more}. "
            "Evaluate both on the same file (gtpo eval --data-path ...)"
        )
    return [id_ for id_, _ in shared]


def _differences(one: Results, other: Results, names: Sequence[str], ids: Sequence[str]) -> tuple[Difference, ...]:
    before_PM, after_PM = _values(one, names, ids), _values(other, names, ids)
    means = before_PM.mean(axis=0).tolist(), after_PM.mean(axis=0).tolist()
    intervals = [
        difference_interval(before_PM[:, m], after_PM[:, m], share=is_share(name)) for m, name in enumerate(names)
    ]
    return tuple(map(Difference, names, *means, intervals))


def _by_part(one: Results, other: Results, names: Sequence[str], ids: Set[str]) -> dict[str, tuple[Difference, ...]]:
    shared = {part: [id_ for id_ in own if id_ in ids] for part, own in one.parts.items()}
    found = {part: _differences(one, other, names, own) for part, own in shared.items() if own}
    if len(found) < 2:
        return {}
    return found | {
        MEAN_OF_PARTS: tuple(
            Difference(
                column[0].score,
                fmean(row.before for row in column),
                fmean(row.after for row in column),
                macro_average([row.interval for row in column]),
            )
            for column in zip(*found.values(), strict=True)
        )
    }


def _values(results: Results, scores: Sequence[str], ids: Sequence[str]) -> NDArray[np.float64]:
    """Return the values of these scores for these problems, (P, M)."""
    rows = {id_: row for row, id_ in enumerate(results.problem_ids)}
    return np.array([[results.scores[name].values[rows[id_]] for name in scores] for id_ in ids], dtype=np.float64)


def _solved(stored: StoredEvaluation, results: Results, ids: Sequence[str], *, first: bool) -> list[bool]:
    """Return whether each problem's first completion (or any of them) is right. Raises EvaluationError."""
    if not first:
        return [share > 0.0 for share in _values(results, ["accuracy"], ids)[:, 0].tolist()]
    if "first_pass@1" in results.scores:
        return [value == 1.0 for value in _values(results, ["first_pass@1"], ids)[:, 0].tolist()]
    completions = {problem.id: problem.completions for problem in stored.problems()}
    if not completions.keys() >= set(ids):
        raise EvaluationError(
            f"{stored.samples_file}: completions are missing, and k = 1 was not evaluated, so it is unknown which "
            "problems the first completion solves; sample again with gtpo eval --again"
        )
    return [completions[id_][0].correct for id_ in ids]


def _where(ids: Sequence[str], here: Sequence[bool], there: Sequence[bool]) -> tuple[str, ...]:
    return tuple(id_ for id_, h, t in zip(ids, here, there, strict=True) if h and not t)
