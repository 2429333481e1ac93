"""Read a run folder for a report, as one record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import JsonValue

from gtpo_cli.errors import EvaluationError, GtpoError
from gtpo_cli.evaluation.store import Conditions, Results, StoredEvaluation, largest_evaluations
from gtpo_cli.recipe import Recipe
from gtpo_cli.runs.files import read_json
from gtpo_cli.runs.folder import RunFolder
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
    """A run in a report. `rows`: metrics.jsonl, empty for a model that was only evaluated. `evaluations`: one for each
    benchmark and subject."""

    name: str
    run: RunFolder
    recipe: Recipe
    environment: dict[str, Any]
    initial_entropy: float | None
    rows: list[dict[str, float]]
    evaluations: tuple[Evaluation, ...]

    @property
    def method(self) -> str:
        """The training method, such as GTPO, GRPO or SFT."""
        return self.recipe.objective.name.upper() if self.rows else "untrained"


class Evaluated(NamedTuple):
    """A model that was evaluated on a benchmark. A trained one has its run's method and name, and its `place` among the
    runs. An untrained one has the method "base" and the model's name, and may belong to several runs."""

    method: str
    name: str
    place: int | None
    evaluation: Evaluation

    @property
    def model(self) -> str:
        return self.name if self.place is None else f"{self.name} {self.evaluation.conditions.subject}"


def read_run(run: RunFolder) -> RunRecord:
    """Read a run. Raises GtpoError with the file's name for a file that cannot be read."""
    environment, file = {}, run.environment_file
    if os.path.lexists(file):
        environment = read_json(
            file,
            dict[str, JsonValue],
            lambda why: GtpoError(f"{file}: cannot be read ({why}); you can delete it: it is only for information"),
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


def evaluated(runs: Sequence[RunRecord]) -> dict[str, list[Evaluated]]:
    """Map each benchmark to its evaluated models in the order of the runs, without repeats of an untrained model."""
    found: dict[str, dict[tuple[int | None, str], Evaluated]] = {}
    for place, run in enumerate(runs):
        for evaluation in run.evaluations:
            c = evaluation.conditions
            one = Evaluated(run.method, run.name, place, evaluation)
            if c.subject == BASE:
                one = Evaluated(BASE, c.model, None, evaluation)
            found.setdefault(c.benchmark, {}).setdefault((one.place, c.digest), one)
    return {benchmark: list(shown.values()) for benchmark, shown in found.items()}
