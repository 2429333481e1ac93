"""Evaluation during training on a few test problems, with one completion each."""

from __future__ import annotations

import time
from statistics import fmean

from gtpo_cli.errors import DataError
from gtpo_cli.evaluation.loading import PolicyAndSampler
from gtpo_cli.evaluation.measure import sample_and_grade
from gtpo_cli.evaluation.problems import load_benchmark
from gtpo_cli.evaluation.records import EvaluatedProblem
from gtpo_cli.generation import Sampler
from gtpo_cli.models import Policy
from gtpo_cli.recipe import Recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.seeds import derive_seed


class HeldOut:
    """The test problems of `evaluation.benchmarks`, evaluated every `training.eval_every` steps.

    Every evaluation uses the same seed, so only the policy changes. Raises DataError if there are no test problems.
    """

    def __init__(self, recipe: Recipe, policy: Policy, sampler: Sampler, scorer: Scorer) -> None:
        self._recipe, self._scorer = recipe, scorer
        self._subject = PolicyAndSampler(policy, sampler)
        self._benchmarks = []
        for name in recipe.evaluation.benchmarks:
            try:
                benchmark = load_benchmark(recipe, name, policy.tokenizer, max_seq_length=policy.max_seq_length)
            except DataError as error:
                raise DataError(f"training.eval_every: there is nothing to evaluate on: {error}") from error
            self._benchmarks.append(benchmark)

    def evaluate(self) -> tuple[dict[str, float], dict[str, list[dict[str, str | float | None]]]]:
        """Return the metrics `eval/...` of the current policy and, for each benchmark, a table of its answers.

        Raises GenerationError, RewardError.
        """
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        tables: dict[str, list[dict[str, str | float | None]]] = {}
        self._subject.sampler.sync(self._subject.policy)
        for benchmark in self._benchmarks:
            seed = derive_seed(self._recipe.seed, f"held out {benchmark.name}")
            problems = sample_and_grade(
                self._recipe, self._subject, benchmark.prompts, self._scorer, samples=1, seed=seed
            )
            completions = [completion for problem in problems for completion in problem.completions]
            tables[benchmark.name] = [_row(problem) for problem in problems]
            prefix = f"eval/{benchmark.name}"
            metrics |= {
                f"{prefix}/accuracy_rate": fmean(completion.correct for completion in completions),
                f"{prefix}/strict_format_rate": fmean(completion.strict_format for completion in completions),
                f"{prefix}/truncated_share": fmean(completion.truncated for completion in completions),
                f"{prefix}/length_mean": fmean(completion.tokens for completion in completions),
                f"{prefix}/entropy_mean": fmean(completion.mean_entropy for completion in completions),
            }
        return metrics | {"eval/time": time.perf_counter() - started}, tables


def _row(problem: EvaluatedProblem) -> dict[str, str | float | None]:
    (completion,) = problem.completions
    return {
        "problem": problem.id,
        "question": problem.question,
        "gold": problem.gold,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "answer": completion.answer,
        "correct": float(completion.correct),
        "strict_format": float(completion.strict_format),
        "tokens": completion.tokens,
        "mean_entropy": completion.mean_entropy,
    }
