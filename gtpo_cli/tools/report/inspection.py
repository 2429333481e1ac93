"""Read a stored step as GTPO saw it: every token's weight, and the reason (docs/objective.md, sections 3 to 6).

Training writes samples/step-000050.jsonl every `tracking.log_completions_every` steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from gtpo_cli.errors import EvaluationError
from gtpo_cli.recipe.schema import ObjectiveRecipe
from gtpo_cli.runs.files import Count, Finite, read_json_lines, step_of
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.types import FinishReason

CONTROLS = {
    "none": "",
    "even": ", its weights spread evenly over each completion",
    "random": ", its weights on random tokens of the same completion",
}


class Token(NamedTuple):
    """One token of a completion. `weight` is its lambda; `coefficient` is c = delta (A - gamma <H>) lambda;
    `entropy` and `logprob` are in nats."""

    text: str
    id: int
    logprob: float
    entropy: float
    forward: int  # 1 or 0, as stored
    backward: int
    weight: float
    coefficient: float

    @property
    def mark(self) -> str:
        """f: forward span, b: backward span, x: both; a space for neither."""
        return "x" if self.forward and self.backward else "f" if self.forward else "b" if self.backward else " "


@dataclass(frozen=True)
class StoredCompletion:
    """A line of samples/step-000050.jsonl, written by training/step_metrics.py. Skipped steps are stored too, so
    values from the model may be infinite or NaN."""

    problem: str
    question: str
    gold: str
    completion: Count
    text: str
    finish_reason: FinishReason
    reward: Finite
    format: Finite
    accuracy: Finite
    correct: bool
    score: Finite | None
    extracted: str | None
    plugins: dict[str, Finite]
    advantage: float
    mean_entropy: float
    kept: bool
    token_texts: Annotated[list[str], Field(alias="tokens")]
    token_ids: list[int]
    logprobs: list[float]
    entropy: list[float]
    forward: list[int]
    backward: list[int]
    weights: Annotated[list[float], Field(alias="lambda")]
    coefficient: list[float]

    def __post_init__(self) -> None:
        """Raise ValueError if the columns of the tokens differ in length."""
        if len({len(column) for column in self._columns()}) > 1:
            raise ValueError("tokens and their figures differ in number")

    def _columns(self) -> tuple[list[Any], ...]:
        """Return the columns of `Token`'s fields."""
        return (
            self.token_texts, self.token_ids, self.logprobs, self.entropy, self.forward, self.backward, self.weights,
            self.coefficient,
        )  # fmt: skip

    @property
    def number(self) -> int:
        """The completion's number in the group, counted from 1."""
        return self.completion + 1

    @cached_property
    def tokens(self) -> list[Token]:
        return [Token(*row) for row in zip(*self._columns(), strict=True)]


@dataclass(frozen=True)
class InspectedGroup:
    """The completions of one problem. `number` is its place in the step, counted from 1."""

    number: int
    completions: list[StoredCompletion]

    @property
    def first(self) -> StoredCompletion:
        """The first completion, which has the problem's data."""
        return self.completions[0]

    @property
    def informative(self) -> bool:
        """Whether the rewards differ."""
        return any(completion.reward != self.first.reward for completion in self.completions)

    @property
    def remark(self) -> str:
        """Why the group taught nothing; empty if it may have."""
        if any(completion.advantage != 0 for completion in self.completions):
            return ""
        return "all rewards are equal, so " * (not self.informative) + "every A is 0 and nothing conflicts"

    @property
    def reward_mean(self) -> float:
        return fmean(completion.reward for completion in self.completions)

    @property
    def reward_std(self) -> float:
        """The standard deviation with divisor G - 1, as in the advantage."""
        return stdev(completion.reward for completion in self.completions) if len(self.completions) > 1 else 0.0

    def folded(self) -> list[list[StoredCompletion]]:
        """Group identical completions: the same tokens with the same reward and weights. In the order of the firsts."""
        found: dict[tuple[object, ...], list[StoredCompletion]] = {}
        for one in self.completions:
            key = (tuple(one.token_ids), one.finish_reason, one.reward, tuple(one.weights))
            found.setdefault(key, []).append(one)
        return list(found.values())

    def partners(self, completion: StoredCompletion, place: int, alignment: str, *, backward: bool) -> list[int]:
        """List the completions of opposite sign that have this token at the same place from the start (or end).

        With `prefix` alignment, all tokens before it (after it) must be equal too.
        """
        at = len(completion.token_ids) - 1 - place if backward else place  # counted from that end

        def part(ids: list[int]) -> list[int]:
            first = 0 if alignment == "prefix" else at
            return ids[len(ids) - 1 - at : len(ids) - first] if backward else ids[first : at + 1]

        own = part(completion.token_ids)
        return [
            other.number
            for other in self.completions
            if other.advantage * completion.advantage < 0 and len(other.token_ids) > at and part(other.token_ids) == own
        ]

    def reasons(self, completion: StoredCompletion, objective: ObjectiveRecipe) -> list[str]:
        """Explain the lambda of each token of a completion."""
        common, weights = None, objective.token_weights
        if weights.rule == "none":
            common = "no rule for token weights: every lambda is 1"
        elif weights.rule != "conflict" or weights.control != "none":
            common = f"the rule {weights.rule}{CONTROLS[weights.control]}"
        elif completion.advantage == 0:
            common = "A = 0: this completion is neither rewarded nor punished, so nothing conflicts with it"
        places = range(len(completion.tokens))
        return [common or self._reason(completion, place, objective.conflict.alignment) for place in places]

    def _reason(self, completion: StoredCompletion, place: int, alignment: str) -> str:
        token = completion.tokens[place]
        reasons = []
        for backward, marked, side in ((False, token.forward, "start"), (True, token.backward, "end")):
            partners = self.partners(completion, place, alignment, backward=backward)
            if partners:
                distance = len(completion.tokens) - 1 - place if backward else place
                shared = f"shared with {', '.join(map(str, partners))}, {distance} from the {side}"
                reasons.append(shared if marked else f"{shared}, but a token nearer to the {side} is not")
        opposite = "punished" if completion.advantage > 0 else "rewarded"
        return "; ".join(reasons) or f"no {opposite} completion has it here"


@dataclass(frozen=True)
class InspectedStep:
    """All groups of a stored step."""

    run: RunFolder
    step: int
    groups: list[InspectedGroup]
    objective: ObjectiveRecipe

    def choose(self, problem: str | None) -> list[InspectedGroup]:
        """Choose groups by number, problem id, or "all"; by default the group whose rewards differ most."""
        if problem is None:
            return [max(self.groups, key=lambda group: group.reward_std)]
        if problem == "all":
            return self.groups
        chosen = [group for group in self.groups if problem in (str(group.number), group.first.problem)]
        if not chosen:
            raise EvaluationError(
                f"step {self.step} has no problem {problem}; choose 1 to {len(self.groups)}: "
                + ", ".join(group.first.problem for group in self.groups)
            )
        return chosen


def read_step(run: RunFolder, step: int | None = None) -> InspectedStep:
    """Read a stored step, by default the newest. Raises EvaluationError if it is missing or cannot be read."""
    objective, stored = run.recipe().objective, stored_steps(run)
    if not stored:
        when = "training stores step 1 and every tracking.log_completions_every steps"
        why = "SFT samples nothing" if objective.name == "sft" else when
        raise EvaluationError(f"{run.path}: there is no stored step to inspect; {why}")
    chosen = stored[-1] if step is None else step
    if chosen not in stored:
        raise EvaluationError(
            f"{run.path}: step {chosen} was not stored; choose from {', '.join(map(str, stored))} "
            "(tracking.log_completions_every sets how often)"
        )
    groups: list[InspectedGroup] = []
    for row in read_completions(run, chosen):
        if row.completion == 0 or not groups:
            groups.append(InspectedGroup(len(groups) + 1, []))
        groups[-1].completions.append(row)
    if not groups:
        raise EvaluationError(f"{run.samples}: step {chosen} holds no completion; inspect another")
    return InspectedStep(run, chosen, groups, objective)


def stored_steps(run: RunFolder) -> list[int]:
    """List the steps with stored completions, ascending."""
    found = (step_of(file.stem) for file in run.samples.glob("step-*.jsonl"))
    return sorted(step for step in found if step is not None)


def read_completions(run: RunFolder, step: int) -> list[StoredCompletion]:
    """Read the stored completions of a step. Raises EvaluationError with file and line."""
    file = run.samples / f"step-{step:06d}.jsonl"

    def wrong(line: int, why: str) -> EvaluationError:
        return EvaluationError(f"{file}:{line}: is not a stored completion ({why}); was it written by another version?")

    return list(read_json_lines(file, StoredCompletion, wrong))
