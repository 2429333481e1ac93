"""Score completions: training and evaluation both read, compare and score them here.

`R` is the weighted sum of format, accuracy, length penalty and plug-ins (docs/objective.md, section 2).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Literal, Self

from gtpo_cli.errors import RewardError
from gtpo_cli.rewards.equality import Equality, EqualityWorkers, Pair, answers_equal, same_text
from gtpo_cli.rewards.extract import (
    FULL_MARKS,
    PAPER_TAGS,
    FormatMode,
    extract_answer,
    format_reward,
    is_strict_format,
)
from gtpo_cli.text import counted, shown
from gtpo_cli.types import Completion, Group, Problem, Tags, Verdict

if TYPE_CHECKING:
    from gtpo_cli.recipe.rewards import AccuracyRewardRecipe, RewardsRecipe
    from gtpo_cli.rewards.user_reward import UserReward


def check_rewards(recipe: RewardsRecipe, problems: Sequence[Problem]) -> None:
    """Raise RewardError for a plug-in that cannot be loaded, or that needs a column which none of the problems has; and
    for a task whose verifier does not take its own answers, or pays for nonsense."""
    if recipe.plugins:
        from gtpo_cli.rewards.user_reward import check_plugin_columns, load_plugin

        for plugin in recipe.plugins:
            check_plugin_columns(plugin.name, load_plugin(plugin.name), problems)
    tasks = defaultdict[tuple[str, str, int | None], list[Problem]](list)
    for problem in problems if recipe.accuracy.weight else ():
        if problem.entry is not None and len(first := tasks[problem.entry.of_task]) < TRIED:
            first.append(problem)
    if tasks:
        with EqualityWorkers(1) as workers:
            for (name, *_), first in tasks.items():
                check_verifier(name, first, recipe.accuracy, workers)


TRIED = 8  # problems of each task
NONSENSE = ("", "zzz")
LEAST_PAY = 0.1  # of partial credit on average: some verifiers give 0.01 or 0.05 for any text


def check_verifier(
    name: str, problems: Sequence[Problem], accuracy: AccuracyRewardRecipe, workers: EqualityWorkers
) -> None:
    """Raise RewardError if a task's verifier does not give its own answers 1, or if it pays for nonsense."""
    known = [problem for problem in problems if problem.gold]
    given = workers.equal_many([(problem.gold, problem.gold, None, problem.entry) for problem in known])
    for problem, grade in zip(known, given, strict=True):
        if not grade.equal:
            why = grade.failed or ("it ran out of time or memory" if grade.timed_out or grade.crashed else "")
            raise RewardError(
                f"{name}: its score() gives its own answer {shown(problem.gold)} to {shown(problem.question)} "
                f"{grade.score:g}{f' ({why})' if why else ''}; only a score of 1 is right, so nothing could be learned"
            )
    for text in () if accuracy.pays_nonsense else NONSENSE:
        grades = workers.equal_many([("", text, None, problem.entry) for problem in problems])
        right, paid = sum(grade.equal for grade in grades), fmean(grade.score for grade in grades)
        if right > len(problems) / 2 or (accuracy.partial_credit and paid >= LEAST_PAY):
            what = f"answer {shown(text)}" if text else "empty answer"
            raise RewardError(
                f"{name}: its score() pays for nonsense: for the {what} it gives {paid:.2g} on average over "
                f"{counted(len(problems), 'question')}; choose another task, or take it with "
                "rewards.accuracy.pays_nonsense: true"
            )


def try_rewards(recipe: RewardsRecipe, problem: Problem, completion: Completion) -> None:
    """Call each of the user's own rewards once, as training does and where it does. Raises RewardError if one fails."""
    plugins = _user_rewards(recipe)
    try:
        for plugin in plugins:
            plugin.ask([(problem, completion)])()
    finally:
        for plugin in plugins:
            plugin.close()


def accuracy_reward(
    text: str,
    gold: str,
    *,
    mode: FormatMode = "strict",
    tags: Tags = PAPER_TAGS,
    equality: Literal["mathematics", "text"] = "mathematics",
    question: str | None = None,
) -> float:
    """Return 10 if the right answer is in the answer tags, else 0. See `extract_answer` and `answers_equal`.

    `equality="text"`: see `same_text`.
    """
    answer = extract_answer(text, mode=mode, tags=tags)
    if answer is None:
        return 0.0
    equal = same_text(gold, answer) if equality == "text" else answers_equal(gold, answer, question=question)
    return FULL_MARKS if equal else 0.0


def length_penalty(tokens: int, *, truncated: bool, limit: int) -> float:
    """Compute DAPO's soft overlong punishment (arXiv 2503.14476, Eq. 13), 0 to -1.

    It is 0 up to four fifths of the limit and falls linearly to -1 at `limit`. Beyond it, and for a truncated
    completion, it is -1.
    """
    soft = limit // 5
    if truncated or tokens > limit:
        return -1.0
    return -max(0, tokens - (limit - soft)) / max(1, soft)


def _user_rewards(recipe: RewardsRecipe) -> list[UserReward]:
    if not recipe.plugins:
        return []
    from gtpo_cli.rewards.user_reward import UserReward

    return [UserReward(plugin.name) for plugin in recipe.plugins]


class Scorer:
    """Scores completions by a recipe's section `rewards`. A context manager, which ends the grading processes.

    Raises RewardError at once if a plug-in cannot be loaded, and from the scoring methods if one fails.
    """

    def __init__(self, recipe: RewardsRecipe, *, longest: int | None = None, num_workers: int | None = None) -> None:
        """`longest`: rollout.max_completion_tokens, for the length penalty. `num_workers`: as in `EqualityWorkers`."""
        if recipe.length.weight and longest is None:
            raise ValueError("the length penalty needs the longest completion")
        self._recipe, self._longest = recipe, longest
        self._plugins = _user_rewards(recipe)
        self.workers = EqualityWorkers(num_workers, equality=recipe.accuracy.equality)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each reward, by its name in `Verdict.scores`."""
        return self._recipe.weights

    def close(self) -> None:
        """End the grading processes and abandon running user rewards."""
        self.workers.close()
        for plugin in self._plugins:
            plugin.close()

    def begin(self, problem: Problem, completion: Completion) -> None:
        """Start grading a completion that will be scored soon, only to save time."""
        for plugin in self._plugins:
            plugin.begin(problem, completion)
        pair = self._pair(problem, completion)
        if pair is not None:
            self.workers.begin(pair)

    def score(self, problem: Problem, completions: Sequence[Completion]) -> tuple[Verdict, ...]:
        """Return a verdict for each completion of one problem, in order."""
        return self.score_groups([Group(problem, (), tuple(completions))])[0].verdicts

    def score_groups(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups with their verdicts.

        The answers of all groups are compared in one batch, and each user reward scores all groups together.
        """
        asked = [(group.problem, completion) for group in groups for completion in group.completions]
        waiting = [(plugin.name, plugin.ask(asked)) for plugin in self._plugins]
        pairs = [[self._pair(group.problem, completion) for completion in group.completions] for group in groups]
        given = [pair for own in pairs for pair in own if pair is not None]
        grades: dict[Pair | None, Equality] = dict(zip(given, self.workers.equal_many(given), strict=True))
        grades[None] = Equality(0.0)
        scores = {name: iter(wait()) for name, wait in waiting}
        return [
            dataclasses.replace(
                group,
                verdicts=tuple(
                    self._verdict(
                        group.problem, completion, grades[pair], {name: next(own) for name, own in scores.items()}
                    )
                    for completion, pair in zip(group.completions, row, strict=True)
                ),
            )
            for group, row in zip(groups, pairs, strict=True)
        ]

    def _pair(self, problem: Problem, completion: Completion) -> Pair | None:
        """Return the pair to compare, with the question, whose copies do not count, and the entry of a task that
        scores. None without an answer."""
        answer = self._answer(problem.opened + completion.text)
        return None if answer is None else (problem.gold, answer, problem.question, problem.entry)

    def _answer(self, text: str) -> str | None:
        return extract_answer(text, mode=self._recipe.format.mode, tags=self._recipe.tags)

    def _verdict(self, problem: Problem, completion: Completion, grade: Equality, own: dict[str, float]) -> Verdict:
        recipe, text = self._recipe, problem.opened + completion.text
        tags = recipe.tags
        format_score = format_reward(text, mode=recipe.format.mode, tags=tags)
        accuracy_score = FULL_MARKS * (grade.score if recipe.accuracy.partial_credit else grade.equal)
        if recipe.length.weight:
            assert self._longest is not None
            own["length"] = length_penalty(
                len(completion.token_ids), truncated=completion.truncated, limit=self._longest
            )
        scores = {"format": format_score, "accuracy": accuracy_score} | own
        return Verdict(
            reward=sum(weight * scores[name] for name, weight in recipe.weights.items()),
            format_score=format_score,
            accuracy_score=accuracy_score,
            strict_format=is_strict_format(text, tags=tags),
            complete_format=format_score == FULL_MARKS,
            correct=grade.equal,
            extracted=self._answer(text),
            timed_out=grade.timed_out or grade.crashed,  # crashed: the memory limit
            score=None if problem.entry is None else grade.score,
            failed=grade.failed,
            plugins=own,
        )
