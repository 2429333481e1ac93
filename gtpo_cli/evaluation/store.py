"""Store evaluations in a run folder, so that a killed one continues and a finished one is not sampled again.

    evaluation/<benchmark>/<subject>-n<samples>-<digest of the conditions>/
      conditions.json   what is measured, and how
      samples.jsonl     one problem per line with its graded completions, appended as they come
      results.json      the scores, written when the evaluation is finished

An incomplete last line, left by a kill, is dropped when the evaluation continues.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from pydantic_core import to_json

from gtpo_cli.errors import EvaluationError
from gtpo_cli.evaluation.records import Conditions, EvaluatedProblem, Results
from gtpo_cli.runs.files import (
    MAX_BYTES,
    append_to,
    guarded,
    locked,
    open_regular,
    own_folder,
    read_json,
    read_json_lines,
    write_aside,
    writing_run,
)
from gtpo_cli.runs.folder import RunFolder


class StoredEvaluation:
    """The folder of one evaluation. Creating the object does not touch the disk."""

    def __init__(self, path: Path, conditions: Conditions) -> None:
        self.path = path
        self.conditions = conditions
        self.samples_file = path / "samples.jsonl"
        self.results_file = path / "results.json"

    @property
    def finished(self) -> bool:
        return self.results_file.is_file()

    def problems(self) -> list[EvaluatedProblem]:
        """Read the problems evaluated so far. Raises EvaluationError with file and line for a broken line."""
        file = self.samples_file

        def wrong(line: int, why: str) -> EvaluationError:
            return EvaluationError(f"{file}:{line}: is not an evaluated problem ({why}); sample again with --again")

        return list(read_json_lines(file, EvaluatedProblem, wrong, cut=True)) if os.path.lexists(file) else []

    def results(self) -> Results:
        """Read the scores of a finished evaluation. Raises EvaluationError if they cannot be read."""
        remedy = "delete it and evaluate again: no completion is sampled again"
        wrong = f"{self.results_file}: cannot be read"
        return read_json(self.results_file, Results, lambda why: EvaluationError(f"{wrong} ({why}); {remedy}"))

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from the same evaluation. Raises EvaluationError if another process works on it."""
        held = EvaluationError(f"{self.path}: another process is working on this evaluation; wait for it, or stop it")
        return locked(self.path / ".lock", held=held)

    def open(self, *, again: bool = False) -> list[EvaluatedProblem]:
        """Prepare the folder for appending, and return its problems. `again` deletes them first.

        Raises EvaluationError if the folder cannot be written.
        """
        with self._writing():
            own_folder(self.path)
            if again:
                self.results_file.unlink(missing_ok=True)
                self.samples_file.unlink(missing_ok=True)
            write_aside(self.path / "conditions.json", json.dumps(asdict(self.conditions), indent=2) + "\n")
            if os.path.lexists(self.samples_file):  # drop a line that a kill left incomplete
                with append_to(self.samples_file) as stream:
                    stream.truncate(_whole_lines(self.samples_file))
        return self.problems()

    def append(self, problems: Sequence[EvaluatedProblem]) -> None:
        """Add evaluated problems and wait until they are on the disk. Raises EvaluationError."""
        lines = [(json.dumps(asdict(problem), ensure_ascii=False) + "\n").encode() for problem in problems]
        if (longest := max(map(len, lines), default=0)) > MAX_BYTES:
            raise EvaluationError(
                f"{self.samples_file}: a problem's completions have {longest / 2**20:.0f} MiB, and lines of more than "
                f"{MAX_BYTES // 2**20} MiB are not read; lower evaluation.samples or evaluation.max_completion_tokens"
            )
        rest = memoryview(b"".join(lines))
        with self._writing(), append_to(self.samples_file) as stream:
            while rest:
                rest = rest[stream.write(rest) :]
            os.fsync(stream.fileno())

    def finish(self, results: Results) -> None:
        """Write the scores. Raises EvaluationError."""
        with self._writing():
            write_aside(self.results_file, to_json(asdict(results), indent=1, inf_nan_mode="null") + b"\n")

    def _writing(self) -> AbstractContextManager[None]:
        return writing_run(
            self.path,
            lambda why, remedy: EvaluationError(
                f"{self.path}: cannot be written ({why}); {remedy}, then run the same command again: it continues"
            ),
        )


def evaluation_at(run: RunFolder, conditions: Conditions) -> StoredEvaluation:
    """Return the stored or future evaluation with these conditions."""
    name = f"{conditions.subject}-n{conditions.samples}-{conditions.digest}"
    return StoredEvaluation(run.evaluation / conditions.benchmark / name, conditions)


def find_evaluations(run: RunFolder) -> list[StoredEvaluation]:
    """Return a run's finished evaluations, oldest first. Raises EvaluationError for conditions that cannot be read."""
    with guarded(lambda why: EvaluationError(f"{run.evaluation}: cannot be searched ({why})")):
        files = sorted(run.evaluation.glob("*/*/results.json"), key=lambda file: (file.lstat().st_mtime, str(file)))
    return [_read(file.parent) for file in files]


def _whole_lines(file: Path) -> int:
    """Return the number of bytes up to the last line break."""
    whole = position = 0
    with open_regular(file) as stream:
        while piece := stream.read(2**20):
            whole = position + piece.rfind(b"\n") + 1 if b"\n" in piece else whole
            position += len(piece)
    return whole


def largest_evaluations(run: RunFolder) -> list[StoredEvaluation]:
    """Return the finished evaluation to show for each benchmark and subject: the one with most problems, then with most
    completions, then the newest. The untrained model comes first, then checkpoints by step. Raises like
    `find_evaluations`."""

    def size(evaluation: StoredEvaluation) -> tuple[int, int]:
        return evaluation.conditions.problems, evaluation.conditions.samples

    chosen: dict[tuple[str, str], StoredEvaluation] = {}
    for stored in find_evaluations(run):  # oldest first
        key = (stored.conditions.benchmark, stored.conditions.subject)
        if key not in chosen or size(stored) >= size(chosen[key]):
            chosen[key] = stored
    return [chosen[key] for key in sorted(chosen)]  # "base" < "step-..."


def _read(path: Path) -> StoredEvaluation:
    file = path / "conditions.json"
    remedy = f"delete {path} and evaluate again"
    wrong = f"{file}: cannot be read"
    return StoredEvaluation(
        path, read_json(file, Conditions, lambda why: EvaluationError(f"{wrong} ({why}); {remedy}"))
    )
