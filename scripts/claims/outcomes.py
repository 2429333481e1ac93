"""What a model of the third round can do: greedy accuracy, pass@k, maj@k, accuracy at several temperatures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from chains import TESTED_LENGTHS, TRAINED_LENGTH

from gtpo_cli.data import PromptEncoder
from gtpo_cli.estimators import majority_of_votes, pass_at_k
from gtpo_cli.evaluation import loading
from gtpo_cli.evaluation.measure import grade
from gtpo_cli.evaluation.probe import mean_entropies
from gtpo_cli.evaluation.store import EvaluatedProblem
from gtpo_cli.machine.resolve import measuring_job
from gtpo_cli.policy.sampler import SamplingParams, load_sampler, sample
from gtpo_cli.recipe import Recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.checkpoints import Checkpoint
from gtpo_cli.types import Problem

GREEDY = 0.01  # the temperature of a greedy test: the likeliest token has all the weight but for ties
SAMPLED_PROBLEMS = 100  # of each test, for pass@k and maj@k of 64 completions; greedy tests ask all problems
KS = (1, 4, 16, 64)
TEMPERATURES = (0.5, 0.7, 1.0, 1.3)  # accuracy and entropy at each: for accuracy at matched entropy
AT_ONCE = 512  # completions


class Subject:
    """A model that answers: a checkpoint of a run, or with None the recipe's own model."""

    def __init__(self, recipe: Recipe, checkpoint: Checkpoint | None, scorer: Scorer) -> None:
        self._recipe, self._checkpoint, self._scorer = recipe, checkpoint, scorer

    def answers(
        self, problems: Sequence[Problem], *, samples: int, temperature: float, seed: int = 1, entropy: bool = False
    ) -> list[EvaluatedProblem]:
        """`samples` graded completions of each problem; with `entropy` also their mean entropies."""
        job = measuring_job(self._recipe, self._checkpoint, temperature=temperature)
        policy = loading.load_frozen(loading.Subject("test", job, self._checkpoint))
        sampler = load_sampler(policy, job)
        encoder = PromptEncoder(policy.tokenizer, self._recipe.data.system_prompt)
        longest = self._recipe.rollout.max_completion_tokens
        found, at_once = [], max(1, AT_ONCE // samples)
        for first in range(0, len(problems), at_once):
            block = [(problem, encoder.encode(problem.question)) for problem in problems[first : first + at_once]]
            params = SamplingParams(temperature, max_completion_tokens=longest, seed=seed * 1_000_003 + first)
            groups = sample(sampler, block, samples, params)
            entropies = mean_entropies(policy, groups) if entropy else [()] * len(groups)
            found += grade(groups, entropies, self._scorer)
        return found


def read_problems(file: Path) -> list[Problem]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [Problem(f"{file.stem}/{n}", row["question"], row["gold"], row["solution"]) for n, row in enumerate(rows)]


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


def final_outcomes(subject: Subject, data: Path) -> dict[str, float]:
    """Every registered outcome of a model, on the held-out problems of each length."""
    found: dict[str, float] = {}
    for operations in TESTED_LENGTHS:
        problems = read_problems(data / f"test{operations}.jsonl")
        found[f"greedy {operations}"] = accuracy(subject.answers(problems, samples=1, temperature=GREEDY))
        sampled = subject.answers(problems[:SAMPLED_PROBLEMS], samples=max(KS), temperature=1.0)
        found |= {f"{name} {operations}": value for name, value in sampled_scores(sampled).items()}
        if operations == TRAINED_LENGTH:
            found["truncated"] = fmean(c.truncated for p in sampled for c in p.completions)
            for temperature in TEMPERATURES:
                some = subject.answers(problems[:500], samples=1, temperature=temperature, entropy=True)
                found[f"accuracy t{temperature}"] = accuracy(some)
                found[f"entropy t{temperature}"] = fmean(entropy for problem in some for entropy in problem.entropies)
    return found
