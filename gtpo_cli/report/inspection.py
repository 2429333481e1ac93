"""A stored step as GTPO saw it: why every token got the weight it got (docs/objective.md, sections 3 to 6).

Reads samples/step-000050.jsonl, which training writes every `tracking.log_completions_every` steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Annotated, Any

from pydantic import Field

from gtpo_cli.errors import EvaluationError
from gtpo_cli.files import Count, Finite, read_json_lines, step_of
from gtpo_cli.recipe import Recipe
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.types import FinishReason


@dataclass(frozen=True)
class Token:
    """One token of a completion. `weight` is its lambda, `entropy` and `logprob` are in nats."""

    text: str
    id: int
    logprob: float
    entropy: float
    forward: bool
    backward: bool
    weight: float

    @property
    def mark(self) -> str:
        """f: forward span, b: backward span, x: both; a blank in neither."""
        return "x" if self.forward and self.backward else "f" if self.forward else "b" if self.backward else " "


@dataclass(frozen=True)
class InspectedCompletion:
    """A completion with what the step made of it. `number` counts from 1 within the group."""

    number: int
    text: str
    truncated: bool
    rewards: Mapping[str, float]
    reward: float
    extracted: str | None
    advantage: float
    mean_entropy: float
    kept: bool
    tokens: tuple[Token, ...]

    @property
    def forward_length(self) -> int:
        return sum(token.forward for token in self.tokens)

    @property
    def backward_length(self) -> int:
        return sum(token.backward for token in self.tokens)

    def place(self, index: int) -> str:
        """prefix, suffix, eos or middle. A completion that was not cut off ends with its end-of-sequence token."""
        if index == len(self.tokens) - 1 and not self.truncated:
            return "eos"
        token = self.tokens[index]
        return "prefix" if token.forward else "suffix" if token.backward else "middle"

    def coefficient(self, recipe: Recipe) -> float:
        """delta (A - gamma <H>): what each token's lambda / |o| is multiplied with (Eq. 11)."""
        return (self.advantage - recipe.objective.entropy_coef * self.mean_entropy) if self.kept else 0.0

    def token_weight(self, token: Token, recipe: Recipe) -> float:
        """delta (A - gamma <H>) lambda / |o|: how much the loss pulls at the token's log-probability."""
        return self.coefficient(recipe) * token.weight / len(self.tokens)


@dataclass(frozen=True)
class InspectedGroup:
    """The completions of one problem. `number` counts from 1 within the step."""

    number: int
    problem: str
    question: str
    gold: str
    completions: tuple[InspectedCompletion, ...]

    @property
    def informative(self) -> bool:
        """Is there a difference between the rewards?"""
        return any(completion.advantage != 0 for completion in self.completions)

    @property
    def reward_mean(self) -> float:
        return fmean(completion.reward for completion in self.completions)

    @property
    def reward_std(self) -> float:
        """Divisor G - 1, as in the advantage."""
        return stdev(completion.reward for completion in self.completions) if len(self.completions) > 1 else 0.0

    def pulls(self, recipe: Recipe) -> dict[str, tuple[float, float]]:
        """Where the group's gradient falls: for each place the shares (up, down) of the sum of |token_weight|.

        Places as in `gtpo_cli.objective.token_places`, said again without torch; empty where nothing is pulled.
        """
        sums = {place: [0.0, 0.0] for place in ("prefix", "suffix", "eos", "middle")}
        for completion in self.completions:
            for index, token in enumerate(completion.tokens):
                pull = completion.token_weight(token, recipe)
                sums[completion.place(index)][pull < 0] += abs(pull)
        total = sum(map(sum, sums.values()))
        return {place: (up / total, down / total) for place, (up, down) in sums.items()} if total else {}

    def partners(self, completion: InspectedCompletion, place: int, alignment: str, *, backward: bool) -> list[int]:
        """Numbers of the completions of opposite sign that have this token at the same place from the start (or end).

        With `prefix` alignment they must also agree on everything before it (after it).
        """
        own = _ids(completion, backward)
        at = len(own) - 1 - place if backward else place
        found = []
        for other in self.completions:
            ids = _ids(other, backward)
            agree = len(ids) > at and (ids[: at + 1] == own[: at + 1] if alignment == "prefix" else ids[at] == own[at])
            if other.advantage * completion.advantage < 0 and agree:
                found.append(other.number)
        return found

    def why(self, completion: InspectedCompletion, place: int, recipe: Recipe) -> str:
        """In words: why the token at this place (from 0) has its lambda."""
        token = completion.tokens[place]
        if not recipe.objective.conflict.enabled:
            return "conflict correction is off: every lambda is 1"
        if completion.advantage == 0:
            return "A = 0: this completion is neither rewarded nor punished, so nothing conflicts with it"
        alignment = recipe.objective.conflict.alignment
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
    """All groups of a stored step. `stored`: the steps that can be inspected."""

    run: RunFolder
    step: int
    stored: tuple[int, ...]
    groups: tuple[InspectedGroup, ...]

    @cached_property
    def recipe(self) -> Recipe:
        return self.run.recipe()

    def choose(self, problem: str | None) -> list[InspectedGroup]:
        """Groups by number, problem id, or "all"; by default the first with a difference in reward."""
        if problem is None:
            return [next((group for group in self.groups if group.informative), self.groups[0])]
        if problem == "all":
            return list(self.groups)
        chosen = [group for group in self.groups if problem in (str(group.number), group.problem)]
        if not chosen:
            raise EvaluationError(
                f"step {self.step} has no problem {problem}; there are 1 to {len(self.groups)}: "
                + ", ".join(group.problem for group in self.groups)
            )
        return chosen


def read_step(run: RunFolder, step: int | None = None) -> InspectedStep:
    """A stored step, by default the newest. Raises EvaluationError when it is not there or cannot be read."""
    stored = stored_steps(run)
    if not stored:
        sft = run.recipe().objective.name == "sft"
        why = (
            "SFT samples nothing" if sft else "training stores them at step 1 and every tracking.log_completions_every"
        )
        raise EvaluationError(f"{run.path}: no step was stored to inspect; {why}")
    chosen = stored[-1] if step is None else step
    if chosen not in stored:
        raise EvaluationError(
            f"{run.path}: step {chosen} was not stored; there is {', '.join(map(str, stored))} "
            "(tracking.log_completions_every says how often)"
        )
    groups: list[list[SampleRow]] = []
    for row in read_rows(run, chosen):
        if row.completion == 0 or not groups:
            groups.append([])
        groups[-1].append(row)
    if not groups:
        raise EvaluationError(f"{run.samples}: step {chosen} holds no completion; inspect another")
    read = tuple(_group(number, rows) for number, rows in enumerate(groups, start=1))
    return InspectedStep(run, chosen, tuple(stored), read)


@dataclass(frozen=True)
class SampleRow:
    """A line of samples/step-000050.jsonl, as training/samples.py writes it. A step that was skipped is stored too, so
    what the model computed may be infinite or NaN."""

    problem: str
    question: str
    gold: str
    completion: Count
    text: str
    finish_reason: FinishReason
    reward: Finite
    format: Finite
    accuracy: Finite
    extracted: str | None
    plugins: dict[str, Finite]
    advantage: float
    mean_entropy: float
    kept: bool
    tokens: list[str]
    token_ids: list[int]
    logprobs: list[float]
    entropy: list[float]
    forward: list[int]
    backward: list[int]
    weights: Annotated[list[float], Field(alias="lambda")]

    def __post_init__(self) -> None:
        """Raises ValueError where the columns of the tokens are not of one length."""
        if len({len(column) for column in self.columns}) > 1:
            raise ValueError("tokens and their figures: there are not as many of each")

    @property
    def columns(self) -> tuple[list[Any], ...]:
        return (
            self.tokens, self.token_ids, self.logprobs, self.entropy, self.forward, self.backward, self.weights
        )  # fmt: skip


def stored_steps(run: RunFolder) -> list[int]:
    """The steps whose completions are stored, ascending."""
    found = (step_of(file.stem) for file in run.samples.glob("step-*.jsonl"))
    return sorted(step for step in found if step is not None)


def read_rows(run: RunFolder, step: int) -> list[SampleRow]:
    """The stored completions of a step. Raises EvaluationError, naming file and line."""
    file = run.samples / f"step-{step:06d}.jsonl"
    return list(
        read_json_lines(
            file,
            SampleRow,
            lambda line, why: EvaluationError(
                f"{file}:{line}: is no stored completion ({why}); was it written by another version?"
            ),
        )
    )


def _group(number: int, rows: Sequence[SampleRow]) -> InspectedGroup:
    first = rows[0]
    return InspectedGroup(number, first.problem, first.question, first.gold, tuple(_completion(row) for row in rows))


def _completion(row: SampleRow) -> InspectedCompletion:
    return InspectedCompletion(
        number=row.completion + 1,
        text=row.text,
        truncated=row.finish_reason == "length",
        rewards={"format": row.format, "accuracy": row.accuracy, **row.plugins},
        reward=row.reward,
        extracted=row.extracted,
        advantage=row.advantage,
        mean_entropy=row.mean_entropy,
        kept=row.kept,
        tokens=tuple(
            Token(text, id_, logprob, entropy, bool(forward), bool(backward), weight)
            for text, id_, logprob, entropy, forward, backward, weight in zip(*row.columns, strict=True)
        ),
    )


def _ids(completion: InspectedCompletion, backward: bool) -> list[int]:
    ids = [token.id for token in completion.tokens]
    return ids[::-1] if backward else ids
