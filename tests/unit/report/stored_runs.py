"""Run folders with real recipes, metrics and evaluations, made quickly, for tests of what reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from gtpo_cli.evaluation.measure import score_problems
from gtpo_cli.evaluation.store import (
    Conditions,
    EvaluatedCompletion,
    EvaluatedProblem,
    StoredEvaluation,
    data_digest,
    evaluation_at,
)
from gtpo_cli.recipe import build_recipe, dump_recipe
from gtpo_cli.recipe.schema import EvaluationRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.types import Problem

SETTINGS = EvaluationRecipe(samples=3, pass_k=(1, 3), majority_k=(3,))
_clock = count(1_700_000_000)


def run_at(path: Path, rows: Sequence[Mapping[str, Any]] = (), **sections: Any) -> RunFolder:
    """A run folder with a recipe and metrics."""
    run = RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    document = {"model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"}} | sections
    run.recipe_file.write_text(dump_recipe(build_recipe(document, where="test")))
    if rows:
        run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def store(
    run: RunFolder,
    scorer: Scorer,
    right: Sequence[str],
    *,
    first_problem: int = 1,
    subject: str = "step-000010",
    gold: str = "5",
    text: str = "",
    part: Callable[[int], str] = lambda number: "",
    **conditions: Any,
) -> StoredEvaluation:
    """A finished evaluation. `right`: for each problem which of its three completions are right, "101"."""
    problems = []
    for number, marks in enumerate(right, start=first_problem):
        rows = tuple(
            EvaluatedCompletion(text, 9, "stop", 0.5, "5" if mark == "1" else "6", mark == "1", True, True, True)
            for mark in marks
        )
        problems.append(EvaluatedProblem(f"arithmetic/test/{number}", f"q{number}", gold, rows, part(number)))
    made = Conditions(
        benchmark="arithmetic", split="test", subject=subject, model="builtin:tiny", problems=len(problems),
        data_digest=data_digest([Problem(p.id, p.question, p.gold) for p in problems]), samples=3, temperature=1.0,
        top_p=1.0, max_completion_tokens=64, seed=1,
    )  # fmt: skip
    stored = evaluation_at(run, replace(made, **conditions))
    stored.open()
    stored.append(problems)
    stored.finish(score_problems(problems, SETTINGS, scorer))
    now = next(_clock)
    os.utime(stored.results_file, (now, now))
    return stored
