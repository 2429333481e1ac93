"""Graded completions -> scores with intervals. What each score is called: `records.Results`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gtpo_cli.estimators import bootstrap_means, first_k_pass, majority_of_votes, pass_at_k
from gtpo_cli.evaluation.grading import Grader
from gtpo_cli.evaluation.records import EvaluatedProblem, Results, Score, problem_digest
from gtpo_cli.recipe.schema import EvaluationRecipe
from gtpo_cli.seeds import derive_seed


def score_problems(
    problems: Sequence[EvaluatedProblem], settings: EvaluationRecipe, grader: Grader, *, seed: int, dropped: int = 0
) -> Results:
    """All scores of problems that have the same number of completions each; every k must be within that number.

    Each score is a mean over problems, with a 95 % bootstrap interval over problems.
    """
    rows = [_one_problem(problem, settings, grader, seed) for problem in problems]
    table = [list(row.values()) for row in rows]
    intervals = bootstrap_means(table, seed=derive_seed(seed, "evaluation bootstrap"))
    scores = {
        name: Score(interval, tuple(row[name] for row in rows))
        for name, interval in zip(rows[0], intervals, strict=True)
    }
    return Results(
        problem_ids=tuple(problem.id for problem in problems),
        problem_digests=tuple(problem_digest(problem.question, problem.gold) for problem in problems),
        scores=scores,
        dropped=dropped,
    )


def _one_problem(problem: EvaluatedProblem, settings: EvaluationRecipe, grader: Grader, seed: int) -> dict[str, float]:
    completions = problem.completions
    correct = [completion.correct for completion in completions]
    votes = grader.votes(problem) if settings.majority_k else []
    subsets = derive_seed(seed, f"majority {problem.id}")
    return {
        "accuracy": fmean(correct),
        **{f"pass@{k}": pass_at_k(len(correct), sum(correct), k) for k in settings.pass_k},
        **{f"first_pass@{k}": float(first_k_pass(correct, k)) for k in settings.pass_k},
        **{f"maj@{k}": majority_of_votes(votes, k, seed=subsets) for k in settings.majority_k},
        "format_rate": fmean(completion.complete_format for completion in completions),
        "strict_format_rate": fmean(completion.strict_format for completion in completions),
        "truncated_share": fmean(completion.truncated for completion in completions),
        "unparsable_share": fmean(not completion.parsable for completion in completions),
        "timed_out_share": fmean(completion.timed_out for completion in completions),
        "mean_entropy": fmean(completion.mean_entropy for completion in completions),
        "mean_length": fmean(completion.tokens for completion in completions),
        **{name: fmean(completion.plugins[name] for completion in completions) for name in completions[0].plugins},
    }
