"""Rewards of completions: format, accuracy, plug-ins, and their weighted sum (docs/objective.md, section 2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Protocol, Self

from gtpo_cli.rewards.ahead import GradingAhead
from gtpo_cli.rewards.equivalence import answers_equal
from gtpo_cli.rewards.extract import (
    PAPER_TAGS,
    FormatMode,
    TagNames,
    extract_answer,
    has_final_answer_block,
    has_reasoning_block,
    is_strict_format,
    tag_pair,
    tag_texts,
)
from gtpo_cli.rewards.registry import call_plugin, load_plugin
from gtpo_cli.rewards.text import TextEquality, same_text
from gtpo_cli.rewards.workers import Equality, EqualityWorkers, Pair
from gtpo_cli.types import Completion, Group, Problem, Verdict

FULL_MARKS = 10.0  # for the format, and for the right answer


AnswerEquality = Literal["mathematics", "text"]


def format_reward(text: str, *, mode: FormatMode = "strict", tags: TagNames = PAPER_TAGS) -> float:
    """10 if all tags are there, 1 if only some are, 0 if none is. What "there" means depends on the mode.

    strict: once each and in order. presence: somewhere. released_code: 10 for a reasoning block and an answer block
    that ends the text; with only one of the two blocks 1.5 if a tag of the other kind occurs too, else 1; with
    neither 0, whatever single tags there are.
    """
    if mode == "released_code":
        return _released_code_format(text, tags)
    present = [tag in text for tag in tag_texts(tags)]
    complete = is_strict_format(text, tags=tags) if mode == "strict" else all(present)
    return FULL_MARKS if complete else 1.0 if any(present) else 0.0


def _released_code_format(text: str, tags: TagNames) -> float:
    reasoning, answer = has_reasoning_block(text, tags=tags), has_final_answer_block(text, tags=tags)
    if reasoning and answer:
        return FULL_MARKS
    if reasoning:
        return 1.5 if _has_a_tag(text, tags.answer) else 1.0
    if answer:
        return 1.5 if _has_a_tag(text, tags.reasoning) else 1.0
    return 0.0


def _has_a_tag(text: str, name: str | None) -> bool:
    return name is not None and any(tag in text for tag in tag_pair(name))


def accuracy_reward(
    text: str,
    gold: str,
    *,
    mode: FormatMode = "strict",
    tags: TagNames = PAPER_TAGS,
    equality: AnswerEquality = "mathematics",
    question: str | None = None,
) -> float:
    """10 if the right answer is enclosed in the answer tags, else 0. See `extract_answer` and `answers_equal`.

    released_code: only with full marks for the format, and the gold answer anywhere in the answer will do.
    `equality="text"`: see `same_text`.
    """
    answer = _gradable_answer(text, mode, tags)
    if answer is None:
        return 0.0
    if _contains(gold, answer, mode):
        return FULL_MARKS
    equal = same_text(gold, answer) if equality == "text" else answers_equal(gold, answer, question=question)
    return FULL_MARKS if equal else 0.0


def _gradable_answer(text: str, mode: FormatMode, tags: TagNames) -> str | None:
    if mode == "released_code" and format_reward(text, mode=mode, tags=tags) < FULL_MARKS:
        return None
    return extract_answer(text, mode=mode, tags=tags)


def _contains(gold: str, answer: str, mode: FormatMode) -> bool:
    """The released code's short cut: the gold answer is a substring of the answer. Never in the other modes."""
    return mode == "released_code" and bool(gold.strip()) and gold.strip() in answer


class Weighted(Protocol):
    @property
    def weight(self) -> float: ...


class FormatSettings(Weighted, Protocol):
    @property
    def mode(self) -> FormatMode: ...
    @property
    def tags(self) -> TagNames: ...


class AccuracySettings(Weighted, Protocol):
    @property
    def equality(self) -> AnswerEquality: ...
    @property
    def reject_copied(self) -> bool: ...


class PluginSettings(Weighted, Protocol):
    @property
    def name(self) -> str: ...


class RewardSettings(Protocol):
    """What a `Scorer` reads of a recipe: its section `rewards` (`RewardsRecipe`), a neighbour on the same floor."""

    @property
    def format(self) -> FormatSettings: ...
    @property
    def accuracy(self) -> AccuracySettings: ...
    @property
    def plugins(self) -> Sequence[PluginSettings]: ...
    @property
    def timeout_seconds(self) -> float: ...


def asked(problem: Problem, answer: str, accuracy: AccuracySettings) -> Pair:
    """What the grading is asked about an answer: with the question where copying it is no answer."""
    if accuracy.reject_copied:
        return problem.gold, answer, problem.question
    return problem.gold, answer


class Scorer:
    """Scores completions as a recipe says. A context manager, which ends the grading processes.

    Raises RewardError at once when a plug-in cannot be loaded, and from the scoring methods when one fails.
    """

    def __init__(self, recipe: RewardSettings, *, num_workers: int | None = None) -> None:
        self._recipe = recipe
        self._plugins = [(plugin, load_plugin(plugin.name)) for plugin in recipe.plugins]
        self._grading: GradingAhead | TextEquality
        if recipe.accuracy.equality == "text":
            self._grading = TextEquality()
        else:
            self._grading = GradingAhead(EqualityWorkers(num_workers, timeout_seconds=recipe.timeout_seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the grading processes."""
        self._grading.close()

    def begin(self, problem: Problem, completion: Completion) -> None:
        """Start grading a completion that will be scored soon; nothing but time depends on it."""
        answer = self._answer(completion)
        if answer is not None:
            self._grading.begin(*self._pair(problem, answer))

    def score(self, problem: Problem, completions: Sequence[Completion]) -> tuple[Verdict, ...]:
        """One verdict for each completion of one problem, in order."""
        group = Group(problem=problem, prompt_ids=(), completions=tuple(completions))
        return self.score_groups([group])[0].verdicts

    def score_groups(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with their verdicts. The answers of all groups are graded in one batch."""
        pairs = [
            self._pair(group.problem, answer)
            for group in groups
            for completion in group.completions
            if (answer := self._answer(completion)) is not None
        ]
        grades = dict(zip(pairs, self._grading.equal_many(pairs), strict=True))
        self._grading.forget()
        return [
            dataclasses.replace(
                group,
                verdicts=tuple(self._verdict(group.problem, completion, grades) for completion in group.completions),
            )
            for group in groups
        ]

    def _answer(self, completion: Completion) -> str | None:
        return _gradable_answer(completion.text, self._recipe.format.mode, self._recipe.format.tags)

    def _pair(self, problem: Problem, answer: str) -> Pair:
        return asked(problem, answer, self._recipe.accuracy)

    def _verdict(self, problem: Problem, completion: Completion, grades: Mapping[Pair, Equality]) -> Verdict:
        recipe, text = self._recipe, completion.text
        mode, tags = recipe.format.mode, recipe.format.tags
        answer = self._answer(completion)
        grade = Equality(equal=False) if answer is None else grades[self._pair(problem, answer)]
        correct = grade.equal or (answer is not None and _contains(problem.gold, answer, mode))
        format_score = format_reward(text, mode=mode, tags=tags)
        accuracy_score = FULL_MARKS if correct else 0.0
        plugins = {
            plugin.name: call_plugin(plugin.name, function, problem, completion) for plugin, function in self._plugins
        }
        reward = recipe.format.weight * format_score + recipe.accuracy.weight * accuracy_score
        reward += sum(plugin.weight * plugins[plugin.name] for plugin in recipe.plugins)
        return Verdict(
            reward=reward,
            format_score=format_score,
            accuracy_score=accuracy_score,
            strict_format=is_strict_format(text, tags=tags),
            complete_format=format_score == FULL_MARKS,
            correct=correct,
            extracted=extract_answer(text, mode=mode, tags=tags),
            timed_out=grade.timed_out or grade.crashed,  # crashed: the memory limit
            plugins=plugins,
        )
