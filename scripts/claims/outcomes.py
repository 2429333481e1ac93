"""What a model can do: greedy accuracy, pass@k, maj@k."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gtpo_cli.data import PromptEncoder
from gtpo_cli.estimators import majority_of_votes, pass_at_k
from gtpo_cli.evaluation import loading
from gtpo_cli.evaluation.measure import grade
from gtpo_cli.evaluation.store import EvaluatedProblem
from gtpo_cli.machine.resolve import measuring_job
from gtpo_cli.policy.sampler import SamplingParams, load_sampler, sample
from gtpo_cli.recipe import Recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.checkpoints import Checkpoint
from gtpo_cli.types import Problem

GREEDY = 0.01  # the temperature of a greedy test: the likeliest token has all the weight but for ties
KS = (1, 4, 16, 64)
AT_ONCE = 512  # completions


class Subject:
    """A model that answers: a checkpoint of a run, or with None the recipe's own model."""

    def __init__(self, recipe: Recipe, checkpoint: Checkpoint | None, scorer: Scorer) -> None:
        self._recipe, self._checkpoint, self._scorer = recipe, checkpoint, scorer

    def answers(self, problems: Sequence[Problem], *, samples: int, temperature: float) -> list[EvaluatedProblem]:
        """`samples` graded completions of each problem."""
        job = measuring_job(self._recipe, self._checkpoint, temperature=temperature)
        policy = loading.load_frozen(loading.Subject("test", job, self._checkpoint))
        sampler = load_sampler(policy, job)
        encoder = PromptEncoder(policy.tokenizer, self._recipe.data.system_prompt)
        longest = self._recipe.rollout.max_completion_tokens
        found, at_once = [], max(1, AT_ONCE // samples)
        for first in range(0, len(problems), at_once):
            block = [(problem, encoder.encode(problem.question)) for problem in problems[first : first + at_once]]
            params = SamplingParams(temperature, max_completion_tokens=longest, seed=1_000_003 + first)
            groups = sample(sampler, block, samples, params)
            found += grade(groups, [()] * len(groups), self._scorer)
        return found


def accuracy(problems: Sequence[EvaluatedProblem]) -> float:
    return fmean(completion.correct for problem in problems for completion in problem.completions)


def sampled_scores(problems: Sequence[EvaluatedProblem]) -> dict[str, float]:
    """pass@k and maj@k for each k that there are completions for, means over problems.

    All answers are whole numbers, so equal ones are equal as text.
    """
    scores: dict[str, list[float]] = {}
    for problem in problems:
        right = [completion.correct for completion in problem.completions]
        classes = {answer: n for n, answer in enumerate(dict.fromkeys(c.answer for c in problem.completions), start=1)}
        votes = [None if c.answer is None else 0 if c.correct else classes[c.answer] for c in problem.completions]
        for k in (k for k in KS if k <= len(right)):
            scores.setdefault(f"pass@{k}", []).append(pass_at_k(len(right), sum(right), k))
            scores.setdefault(f"maj@{k}", []).append(majority_of_votes(votes, k))
    return {name: fmean(values) for name, values in scores.items()}
