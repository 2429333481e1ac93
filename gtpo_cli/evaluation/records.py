"""The frozen records of an evaluation on disk: conditions, graded completions, results. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, JsonValue

from gtpo_cli.estimators import Interval, mean_interval
from gtpo_cli.runs.files import Count, Finite
from gtpo_cli.types import FinishReason, Problem


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was measured, and how. An evaluation with the same conditions continues the first one.

    `subject`: "base" (the untrained model) or a checkpoint such as "step-000600". `data_digest` covers id, question and
    gold answer of every problem, in order. `samples`: completions per problem. This and the next three are the recipe's
    section `evaluation`; `settings`: its other keys that scores depend on (`Recipe.decisive`). `weights`: a digest of
    the files of the model. `grader`: the code that judged the answers; of the user's own rewards, `settings` has a
    digest of the files by name.
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
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    weights: str = ""
    grader: str = ""

    @property
    def digest(self) -> str:
        """Return eight hexadecimal digits that name these conditions."""
        return _digest(asdict(self))[:8]

    def differences(self, other: Conditions, *but: str) -> list[tuple[str, Any, Any]]:
        """List (condition, its two values) for all that differ from others', except those named in `but`.

        Nor does it list own rewards: they change no score but their own.
        """
        one, two = ({**asdict(each), **each.settings} for each in (self, other))
        names = [name for name in dict.fromkeys((*one, *two)) if name not in ("settings", "rewards.plugins", *but)]
        return [(name, one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)]


@dataclass(frozen=True, slots=True)
class EvaluatedCompletion:
    """One completion with the parts of its `Verdict` that do not depend on reward weights.

    `tokens`: length with the end-of-sequence token. `mean_entropy`: <H>_i in nats at the evaluation's temperature
    (greedy: at 1), 0 for an empty completion. `answer`: the text in the answer tags, None without a well-formed answer.
    `parsable`: the answer can be compared (a number, mathematics, or text); false without an answer. `timed_out`: the
    comparison ran out of time or memory, so the answer counts as wrong. `plugins`: the unweighted score of each user
    reward by name.
    """

    text: str
    tokens: Count
    finish_reason: FinishReason
    mean_entropy: Finite
    answer: str | None
    correct: bool
    parsable: bool
    strict_format: bool
    complete_format: bool
    timed_out: bool = False
    plugins: Mapping[str, Finite] = field(default_factory=dict)

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class EvaluatedProblem:
    """A problem with its graded completions in sampling order: one line of samples.jsonl."""

    id: str
    question: str
    gold: str
    completions: tuple[EvaluatedCompletion, ...]


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
    (unbiased), `first_pass@K` (the first K completions), `maj@K`, `format_rate`, `strict_format_rate`,
    `truncated_share`, `unparsable_share`, `timed_out_share`, `mean_entropy` (nats), `mean_length` (tokens), and the
    name of each user reward with the mean of its unweighted score (points): see `is_reward`.
    `problem_ids` and `problem_digests` (of question and gold answer) are in the order of each score's values.
    `dropped`: problems of the benchmark that could not be used.
    """

    problem_ids: tuple[str, ...]
    problem_digests: tuple[str, ...]
    scores: Mapping[str, Score] = field(default_factory=dict)
    dropped: Count = 0

    def __post_init__(self) -> None:
        """Raise ValueError if the scores do not belong to these problems."""
        lengths = {len(self.problem_digests), *(len(score.values) for score in self.scores.values())}
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
            {name: Score(mean_interval(own, share=is_share(name)), own) for name, own in values.items()},
        )

    @property
    def headlines(self) -> list[str]:
        """The names of the scores that say most: accuracy, and pass@k for the largest k above 1."""
        return ["accuracy", *(f"pass@{k}" for k in self.ks("pass")[-1:] if k > 1)]

    def ks(self, family: str) -> list[int]:
        """List every k with scores of a family (`pass`, `first_pass`, `maj`), ascending."""
        found = (_K.fullmatch(name) for name in self.scores)
        return sorted(int(match[2]) for match in found if match and match[1] == family)


FIXED_SCORES = (
    "accuracy", "format_rate", "strict_format_rate", "truncated_share", "unparsable_share", "timed_out_share",
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
    return _digest([[problem.id, problem.question, problem.gold] for problem in problems])[:16]


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
