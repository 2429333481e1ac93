"""Evaluations on disk: where they are, what a kill leaves, what cannot be read."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gtpo_cli.errors import EvaluationError
from gtpo_cli.estimators import Interval
from gtpo_cli.evaluation.store import (
    Conditions,
    EvaluatedCompletion,
    EvaluatedProblem,
    Results,
    Score,
    evaluation_at,
    find_evaluations,
    largest_evaluations,
)
from gtpo_cli.runs.folder import RunFolder

CONDITIONS = Conditions(
    benchmark="arithmetic", split="test", subject="step-000600", model="builtin:tiny", problems=2, data_digest="d" * 16,
    samples=2, temperature=1.0, top_p=1.0, max_completion_tokens=64, seed=1,
)  # fmt: skip
RESULTS = Results(("a/1",), ("0" * 16,), ("",), {"accuracy": Score(Interval(0.5, 0.25, 0.75), (0.5,))}, 0)


def problem(number: int) -> EvaluatedProblem:
    row = EvaluatedCompletion(f"text {number} é\u2028x", 3, "stop", 0.5, "5", True, True, True, True)
    return EvaluatedProblem(f"a/{number}", "q", "5", (row, replace(row, correct=False)))


def test_equal_conditions_have_one_folder_and_others_another(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    path = evaluation_at(run, CONDITIONS).path
    assert path.parent == tmp_path / "evaluation" / "arithmetic"
    assert path.name.startswith("step-000600-n2-")
    assert evaluation_at(run, replace(CONDITIONS)).path == path
    for change in (
        {"temperature": 0.6},
        {"data_digest": "e" * 16},
        {"subject": "base"},
        {"settings": {"rewards.format.mode": "strict"}},
    ):
        assert evaluation_at(run, replace(CONDITIONS, **change)).path != path  # type: ignore[arg-type]


def test_an_open_interval_is_null_in_the_file_and_a_share_has_none(tmp_path: Path) -> None:
    """One problem bounds no mean length; null is what JSON has for infinity."""
    stored = evaluation_at(RunFolder(tmp_path), CONDITIONS)
    stored.open()
    length = Score(Interval(12.0, -math.inf, math.inf), (12.0,))
    results = replace(RESULTS, scores={**RESULTS.scores, "mean_length": length})
    stored.finish(results)
    text = stored.results_file.read_text()
    assert json.loads(text)["scores"]["mean_length"]["interval"] == [12.0, None, None]
    assert stored.results() == results
    stored.results_file.write_text(text.replace("0.25", "null", 1))
    with pytest.raises(EvaluationError, match="an interval is not finite"):
        stored.results()


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_that_was_cut_short_is_dropped_and_the_others_stay(tmp_path: Path, cut: int) -> None:
    stored = evaluation_at(RunFolder(tmp_path), CONDITIONS)
    assert stored.open() == []
    stored.append([problem(1)])
    stored.append([problem(2)])
    os.truncate(stored.samples_file, stored.samples_file.stat().st_size - cut)
    assert stored.open() == [problem(1)]
    stored.append([problem(2)])
    assert stored.open() == [problem(1), problem(2)]


def test_finished_evaluations_are_found_oldest_first(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for age, subject in ((30, "step-000600"), (20, "base"), (10, "step-000100")):
        stored = evaluation_at(run, replace(CONDITIONS, subject=subject))
        stored.open()
        stored.finish(RESULTS)
        written = stored.results_file.stat().st_mtime - age
        os.utime(stored.results_file, (written, written))
    evaluation_at(run, replace(CONDITIONS, subject="step-000500")).open()  # not finished
    assert [found.conditions.subject for found in find_evaluations(run)] == ["step-000600", "base", "step-000100"]
    assert find_evaluations(run)[0].conditions == CONDITIONS


def test_the_one_to_show_is_of_the_newest_weights_and_the_largest_of_these(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    kinds = (("old", 500, 30), ("new", 2, 20), ("new", 7, 10), ("new", 5, 0))
    for weights, problems, age in kinds:
        stored = evaluation_at(run, replace(CONDITIONS, weights=weights, problems=problems))
        stored.open()
        stored.finish(RESULTS)
        written = stored.results_file.stat().st_mtime - age
        os.utime(stored.results_file, (written, written))
    assert [(one.conditions.weights, one.conditions.problems) for one in largest_evaluations(run)] == [("new", 7)]
    assert largest_evaluations(run, {"rewards.answer": "boxed"}) == []
    other = evaluation_at(run, replace(CONDITIONS, weights="old", benchmark="gsm8k"))
    other.open()
    other.finish(RESULTS)
    os.utime(other.results_file, (0, 0))
    assert {one.conditions.benchmark for one in largest_evaluations(run)} == {"gsm8k", "arithmetic"}  # still the newest


def test_one_process_is_at_an_evaluation(tmp_path: Path) -> None:
    stored, other = (evaluation_at(RunFolder(tmp_path), CONDITIONS) for _ in range(2))
    with stored.lock():
        with pytest.raises(EvaluationError, match="another process is working on this evaluation"), other.lock():
            pass
        with evaluation_at(RunFolder(tmp_path), replace(CONDITIONS, subject="base")).lock():
            pass  # another one of the same run
    with other.lock():
        pass
