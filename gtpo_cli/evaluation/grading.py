"""Completions -> graded completions: the rewards' own extraction and equality, in their killable processes."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from gtpo_cli.estimators import vote_classes
from gtpo_cli.evaluation.records import EvaluatedProblem, GradedCompletion
from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.rewards import EqualityWorkers, extract_answer, format_reward, is_strict_format
from gtpo_cli.rewards.registry import call_plugin, load_plugin
from gtpo_cli.rewards.score import FULL_MARKS, asked
from gtpo_cli.rewards.text import TextEquality
from gtpo_cli.types import Group


class Grader:
    """Grades in as many processes as there are CPUs. A context manager, which ends them.

    Answers are read in the recipe's tags and format mode and compared as it says. Weights play no part, nor does the
    released code's substring rule: an evaluation asks whether the answer is right, and what each user reward says.
    Raises RewardError for a plug-in that cannot be loaded.
    """

    def __init__(self, rewards: RewardsRecipe) -> None:
        self._mode, self._tags = rewards.format.mode, rewards.format.tags
        self._accuracy = rewards.accuracy
        self._plugins = {plugin.name: load_plugin(plugin.name) for plugin in rewards.plugins}
        self._workers: EqualityWorkers | TextEquality
        if rewards.accuracy.equality == "text":
            self._workers = TextEquality()
        else:
            self._workers = EqualityWorkers(timeout_seconds=rewards.timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the grading processes."""
        self._workers.close()

    def grade(self, groups: Sequence[Group], mean_entropies: Sequence[Sequence[float]]) -> list[EvaluatedProblem]:
        """Grade the completions of groups; `mean_entropies` holds <H>_i in nats for each of them."""
        answers = [[self._answer(completion.text) for completion in group.completions] for group in groups]
        pairs = [
            asked(group.problem, answer, self._accuracy)
            for group, own in zip(groups, answers, strict=True)
            for answer in own
            if answer is not None
        ]
        grades = dict(zip(pairs, self._workers.equal_many(pairs), strict=True))
        given = list(dict.fromkeys(pair[1] for pair in pairs))
        parsable = dict(zip(given, self._workers.usable_many(given), strict=True))
        problems = []
        for group, own, entropies in zip(groups, answers, mean_entropies, strict=True):
            graded = []
            for completion, answer, entropy in zip(group.completions, own, entropies, strict=True):
                grade = None if answer is None else grades[asked(group.problem, answer, self._accuracy)]
                graded.append(
                    GradedCompletion(
                        text=completion.text,
                        tokens=len(completion.token_ids),
                        finish_reason=completion.finish_reason,
                        mean_entropy=entropy,
                        answer=answer,
                        correct=grade is not None and grade.equal,
                        parsable=answer is not None and parsable[answer],
                        strict_format=is_strict_format(completion.text, tags=self._tags),
                        complete_format=self._format(completion.text) == FULL_MARKS,
                        timed_out=grade is not None and (grade.timed_out or grade.crashed),
                        plugins={
                            name: call_plugin(name, plugin, group.problem, completion)
                            for name, plugin in self._plugins.items()
                        },
                    )
                )
            problem = group.problem
            problems.append(EvaluatedProblem(problem.id, problem.question, problem.gold, tuple(graded)))
        return problems

    def votes(self, problem: EvaluatedProblem) -> list[int | None]:
        """The class of equal answers each completion votes for: see `vote_classes`."""
        return vote_classes(
            [completion.answer for completion in problem.completions],
            [completion.correct for completion in problem.completions],
            lambda pairs: [grade.equal for grade in self._workers.equal_many(pairs)],
        )

    def _answer(self, text: str) -> str | None:
        return extract_answer(text, mode=self._mode, tags=self._tags)

    def _format(self, text: str) -> float:
        return format_reward(text, mode=self._mode, tags=self._tags)
