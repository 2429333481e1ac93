"""Evaluation during training on a few test problems, with one completion each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean

from gtpo_cli.evaluation.loading import PolicyAndSampler
from gtpo_cli.evaluation.measure import sample_and_grade
from gtpo_cli.evaluation.store import EvaluatedProblem
from gtpo_cli.job import TrainingJob
from gtpo_cli.policy import Policy
from gtpo_cli.policy.sampler import Sampler
from gtpo_cli.rewards import Scorer
from gtpo_cli.seeds import derive_seed
from gtpo_cli.tracking import Trackers


class HeldOut:
    """The test problems of `evaluation.benchmarks`, evaluated every `training.eval_every` steps.

    Every evaluation uses the same seed, so only the policy changes.
    """

    def __init__(self, job: TrainingJob, policy: Policy, sampler: Sampler, scorer: Scorer) -> None:
        self._benchmarks, self._scorer = job.held_out, scorer
        self._settings, self._seed = job.recipe.evaluation, job.recipe.seed
        self._subject = PolicyAndSampler(policy, sampler)

    def evaluate(self, step: int, trackers: Trackers) -> dict[str, float]:
        """Return the metrics `eval/...` of the current policy. The trackers get tables of its answers and a line.

        Raises GenerationError, RewardError.
        """
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        self._subject.sampler.sync(self._subject.policy)
        for benchmark in self._benchmarks:
            seed = derive_seed(self._seed, f"held out {benchmark.name}")
            problems = sample_and_grade(
                self._settings, self._subject, benchmark.prompts, self._scorer, samples=1, seed=seed
            )
            trackers.log_table(step, f"evaluation/{benchmark.name}", [_row(problem) for problem in problems])
            metrics |= _metrics(benchmark.name, problems)
            parts = dict.fromkeys(problem.part for problem in problems)
            for part in parts if len(parts) > 1 else ():
                metrics |= _metrics(part, [problem for problem in problems if problem.part == part])
        rates = {name: value for name, value in metrics.items() if name.endswith("/accuracy_rate")}
        trackers.message("held out: " + ", ".join(f"{name} {value:z.3f}" for name, value in rates.items()))
        return metrics | {"eval/time": time.perf_counter() - started}


def _metrics(name: str, problems: Sequence[EvaluatedProblem]) -> dict[str, float]:
    completions = [completion for problem in problems for completion in problem.completions]
    return {
        f"eval/{name}/accuracy_rate": fmean(completion.correct for completion in completions),
        f"eval/{name}/strict_format_rate": fmean(completion.strict_format for completion in completions),
        f"eval/{name}/truncated_share": fmean(completion.truncated for completion in completions),
        f"eval/{name}/length_mean": fmean(completion.tokens for completion in completions),
        f"eval/{name}/entropy_mean": fmean(entropy for problem in problems for entropy in problem.entropies),
    }


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
