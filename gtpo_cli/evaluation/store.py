"""Store evaluations in a run folder, so that a killed one continues and a finished one is not sampled again.

    evaluation/<benchmark>/<subject>-n<samples>-<digest of the conditions>/
      conditions.json   what is measured, and how
      samples.jsonl     one problem per line with its graded completions, appended as they come
      results.json      the scores, written when the evaluation is finished

An incomplete last line, left by a kill, is dropped when the evaluation continues.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, JsonValue
from pydantic_core import to_json

from gtpo_cli.errors import EvaluationError
from gtpo_cli.estimators import Interval, mean_interval
from gtpo_cli.runs.files import (
    MAX_BYTES,
    Count,
    Finite,
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
from gtpo_cli.text import file_name
from gtpo_cli.types import FinishReason, Problem

OWN_REWARD = "rewards.plugins."  # before the name of a reward or task of the user's own; its value digests the code
COLUMNS = f"{OWN_REWARD}columns"  # what they may read of all problems


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was measured, and how. An evaluation with the same conditions continues the first one.

    `subject`: "base" (the untrained model), a checkpoint such as "step-000600", or "trained" (an adapter that says no
    step). `data_digest` covers what every problem asks, in order. `samples`: completions per problem. This and the
    next four are the recipe's section `evaluation`; `settings`: its other keys that scores depend on
    (`Recipe.decisive`). `weights`: a digest of the files of the model. `grader`: the code that judged the answers; of
    the user's own rewards, `settings` has a digest of the files by name, and one of the columns that they may read.
    """

    benchmark: str
    split: str
    subject: str
    model: str
    problems: Count
    data_digest: str
    seed: int
    samples: Count
    temperature: Finite
    top_p: Finite
    max_completion_tokens: Count
    entropy: Literal["sample", "all"] = "sample"
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    weights: str = ""
    grader: str = ""

    @property
    def digest(self) -> str:
        """Return eight hexadecimal digits that name these conditions."""
        return _digest(asdict(self))[:8]

    def differences(self, other: Conditions, *but: str) -> list[tuple[str, Any, Any]]:
        """List (condition, its two values) for all that differ from others', except those named in `but`.

        Nor does it list own rewards that only one of them has, since a reward changes no score but its own, and how
        many entropies were measured, which changes the accuracy of a score but not the score.
        """
        one, two = ({**asdict(each), **each.settings} for each in (self, other))
        alone = (name for name in one.keys() ^ two.keys() if name.startswith(OWN_REWARD))
        silent = {"settings", "entropy", *but, *alone}
        names = [name for name in dict.fromkeys((*one, *two)) if name not in silent]
        return [(name, one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)]


@dataclass(frozen=True, slots=True)
class EvaluatedCompletion:
    """One completion with the parts of its `Verdict` that do not depend on reward weights.

    `tokens`: length with the end-of-sequence token. `mean_entropy`: <H>_i in nats at the evaluation's temperature
    (greedy: at 1), 0 for an empty completion, None where it was not measured. `answer`: the text in the answer tags,
    None without a well-formed answer. `parsable`: the answer can be compared (a number, mathematics, or text) or
    is for a task that scores; false without an answer. `timed_out`: the comparison ran out of time or memory, so the
    answer counts as wrong. `score`: of a task that scores answers, 0 to 1, else None. `failed`: what its verifier
    raised. `plugins`: the unweighted score of each user reward by name.
    """

    text: str
    tokens: Count
    finish_reason: FinishReason
    mean_entropy: Finite | None
    answer: str | None
    correct: bool
    parsable: bool
    strict_format: bool
    complete_format: bool
    timed_out: bool = False
    score: Finite | None = None
    failed: str | None = None
    plugins: Mapping[str, Finite] = field(default_factory=dict)

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class EvaluatedProblem:
    """A problem with its graded completions in sampling order: one line of samples.jsonl. `part`: the part of a mixture
    that it comes from."""

    id: str
    question: str
    gold: str
    completions: tuple[EvaluatedCompletion, ...]
    part: str = ""

    @property
    def scores(self) -> list[float]:
        """The score of each completion; 1 or 0 where answers are compared."""
        return [float(c.correct) if c.score is None else c.score for c in self.completions]

    @property
    def entropies(self) -> list[float]:
        """The entropies that were measured."""
        return [c.mean_entropy for c in self.completions if c.mean_entropy is not None]


def _open_ends(stored: Any) -> Any:
    """Read null, which JSON has for infinity, as an end that the values leave open."""
    if not isinstance(stored, list):
        return stored
    ends = (None, -math.inf, math.inf)
    return [value if value is not None else end for value, end in zip(stored, ends, strict=False)]


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of an evaluation: its mean over problems with its 95 % interval, and each problem's value."""

    interval: Annotated[Interval, BeforeValidator(_open_ends)]
    values: tuple[Finite, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """All reported results of a finished evaluation.

    `scores`: metric -> Score, in the order of display. Names: `accuracy` (mean over all completions), `pass@K`
    (unbiased), `first_pass@K` (the first K completions), `maj@K`, `score` and `best@K` (the mean score of a task, and
    the best of K, unbiased; only if tasks score answers), `format_rate`, `strict_format_rate`, `truncated_share`,
    `unparsable_share`, `timed_out_share`, `mean_entropy` (nats), `mean_length` (tokens), and the name of each user
    reward with the mean of its unweighted score (points): see `is_reward`.
    `problem_ids`, `problem_digests` (of question and gold answer) and `problem_parts` (of a mixture) are in the order
    of each score's values. `dropped`: problems of the benchmark that could not be used.
    """

    problem_ids: tuple[str, ...]
    problem_digests: tuple[str, ...]
    problem_parts: tuple[str, ...]
    scores: Mapping[str, Score] = field(default_factory=dict)
    dropped: Count = 0

    def __post_init__(self) -> None:
        """Raise ValueError if the scores do not belong to these problems."""
        lengths = {
            len(self.problem_digests),
            len(self.problem_parts),
            *(len(score.values) for score in self.scores.values()),
        }
        if lengths != {len(self.problem_ids)} or len(set(self.problem_ids)) != len(self.problem_ids):
            raise ValueError("scores: each needs one value per problem, and each problem needs its own id")
        if self.problem_ids and "accuracy" not in self.scores:
            raise ValueError("scores: accuracy is missing")
        for name, score in self.scores.items():
            is_open = not is_share(name) and score.interval[1:] == (-math.inf, math.inf)
            if not all(map(math.isfinite, score.interval[:1] if is_open else score.interval)):
                raise ValueError("scores: an interval is not finite")

    def part(self, ids: Collection[str]) -> Results:
        """Return the results of these problems alone."""
        kept = [place for place, name in enumerate(self.problem_ids) if name in ids]
        values = {name: tuple(score.values[place] for place in kept) for name, score in self.scores.items()}
        return Results(
            tuple(self.problem_ids[place] for place in kept),
            tuple(self.problem_digests[place] for place in kept),
            tuple(self.problem_parts[place] for place in kept),
            {name: Score(mean_interval(own, share=is_share(name)), own) for name, own in values.items()},
        )

    @property
    def parts(self) -> dict[str, list[str]]:
        """The ids of the problems by their part of a mixture; empty if there is only one."""
        found: dict[str, list[str]] = {}
        for id_, part in zip(self.problem_ids, self.problem_parts, strict=True):
            found.setdefault(part, []).append(id_)
        return found if len(found) > 1 else {}

    @property
    def headlines(self) -> list[str]:
        """The names of the scores that say most: accuracy, pass@k for the largest k above 1, and a task's score."""
        largest = [f"pass@{k}" for k in self.ks("pass")[-1:] if k > 1]
        return ["accuracy", *largest, *(["score"] if "score" in self.scores else [])]

    def ks(self, family: str) -> list[int]:
        """List every k with scores of a family (`pass`, `first_pass`, `maj`, `best`), ascending."""
        found = (_K.fullmatch(name) for name in self.scores)
        return sorted(int(match[2]) for match in found if match and match[1] == family)


FIXED_SCORES = (
    "accuracy", "score", "format_rate", "strict_format_rate", "truncated_share", "unparsable_share", "timed_out_share",
    "mean_entropy", "mean_length",
)  # fmt: skip
_K = re.compile(r"(\w+)@([1-9][0-9]{0,8})")


def is_reward(score: str) -> bool:
    """Whether a score is the points of a user reward, not one of the scores that all evaluations have."""
    return score not in FIXED_SCORES and not _K.fullmatch(score)


def is_share(score: str) -> bool:
    """Whether a score's values lie in 0..1."""
    return score not in ("mean_entropy", "mean_length") and not is_reward(score)


def problem_digest(question: str, gold: str) -> str:
    """Return sixteen hexadecimal digits that identify a question and its gold answer."""
    return _digest([question, gold])[:16]


def data_digest(problems: Sequence[Problem]) -> str:
    """Return sixteen hexadecimal digits that identify all problems in their order."""
    return _digest([[one.id, one.question, one.gold, one.turns] for one in problems])[:16]


def columns_digest(problems: Sequence[Problem]) -> str:
    """Return sixteen hexadecimal digits of what the user's own rewards may read of all problems."""
    return _digest([dict(one.columns) for one in problems])[:16]


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=_without_address).encode()).hexdigest()


def _without_address(value: object) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))  # of an image in a column


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
    return StoredEvaluation(run.evaluation / file_name(conditions.benchmark) / name, conditions)


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


def largest_evaluations(run: RunFolder, settings: Mapping[str, Any] | None = None) -> list[StoredEvaluation]:
    """Return the finished evaluation to show for each benchmark and subject: of its newest weights, one of the test
    split, if there is one, with most problems, then with most completions, then the newest. The untrained model comes
    first, then checkpoints by step. `settings`: only with these. Raises like `find_evaluations`."""

    def size(evaluation: StoredEvaluation) -> tuple[bool, int, int]:
        conditions = evaluation.conditions
        return conditions.split == "test", conditions.problems, conditions.samples

    found = find_evaluations(run)  # oldest first
    weights = {(own.benchmark, own.subject): own.weights for own in (stored.conditions for stored in found)}
    chosen: dict[tuple[str, str], StoredEvaluation] = {}
    for stored in found:
        own = stored.conditions
        key = (own.benchmark, own.subject)
        if own.weights != weights[key] or any(own.settings.get(k) != v for k, v in (settings or {}).items()):
            continue
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
