"""What a report reads of a run folder, as one record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import JsonValue

from gtpo_cli.errors import EvaluationError, GtpoError
from gtpo_cli.evaluation.records import Conditions, Results
from gtpo_cli.evaluation.store import StoredEvaluation, largest_evaluations
from gtpo_cli.files import read_json
from gtpo_cli.recipe import Recipe
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.tracking import read_metrics

BASE = "base"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished evaluation and its scores."""

    stored: StoredEvaluation
    results: Results

    @property
    def conditions(self) -> Conditions:
        return self.stored.conditions


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as a report shows it. `rows`: metrics.jsonl, empty for a model that was only evaluated. `evaluations`: one
    for each benchmark and subject."""

    name: str
    run: RunFolder
    recipe: Recipe
    environment: dict[str, Any]
    initial_entropy: float | None
    rows: list[dict[str, float]]
    evaluations: tuple[Evaluation, ...]

    @property
    def method(self) -> str:
        """GTPO, GRPO, SFT: how the run trained."""
        return self.recipe.objective.name.upper() if self.rows else "untrained"


class Evaluated(NamedTuple):
    """A model that was evaluated on a benchmark. `method`: "base" for an untrained one, whose `name` is the model's and
    which runs share; else how its run trained, with the run's name and its `place` among the runs."""

    method: str
    name: str
    place: int | None
    evaluation: Evaluation

    @property
    def model(self) -> str:
        return self.name if self.place is None else f"{self.name} {self.evaluation.conditions.subject}"


def read_run(run: RunFolder) -> RunRecord:
    """Raises GtpoError, naming the file, for what is there and cannot be read."""
    environment, file = {}, run.environment_file
    if os.path.lexists(file):
        environment = read_json(
            file,
            dict[str, JsonValue],
            lambda why: GtpoError(f"{file}: cannot be read ({why}); delete it: it only informs"),
        )
    record = RunRecord(
        name=run.name,
        run=run,
        recipe=run.recipe(),
        environment=environment,
        initial_entropy=run.initial_entropy(),
        rows=read_metrics(run.metrics_file) if os.path.lexists(run.metrics_file) else [],
        evaluations=tuple(Evaluation(stored, stored.results()) for stored in largest_evaluations(run)),
    )
    if not record.rows and not record.evaluations:
        raise EvaluationError(f"{run.path}: there is nothing to report yet: no step and no evaluation")
    return record


# How models are asked and graded; which problems, which model and which seed is apart.
_ASKED = (
    "split", "samples", "temperature", "top_p", "max_completion_tokens", "format_mode", "system_prompt", "tags",
    "equality", "reject_copied", "changed",
)  # fmt: skip


def differing(one: Conditions, other: Conditions, *more: str) -> list[tuple[str, Any, Any]]:
    """(condition, its value in each) where two evaluations did not ask or grade alike; `more`: further conditions."""
    pairs = [(key, getattr(one, key), getattr(other, key)) for key in (*_ASKED, *more)]
    return [(key, here, there) for key, here, there in pairs if here != there]


def evaluated(runs: Sequence[RunRecord]) -> dict[str, list[Evaluated]]:
    """Benchmark -> what was evaluated on it, in the order of the runs; equal evaluations of an untrained model once."""
    found: dict[str, dict[tuple[int | None, str], Evaluated]] = {}
    for place, run in enumerate(runs):
        for evaluation in run.evaluations:
            c = evaluation.conditions
            one = Evaluated(run.method, run.name, place, evaluation)
            if c.subject == BASE:
                one = Evaluated(BASE, c.model, None, evaluation)
            found.setdefault(c.benchmark, {}).setdefault((one.place, c.digest), one)
    return {benchmark: list(shown.values()) for benchmark, shown in found.items()}
