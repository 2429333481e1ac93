"""One evaluation: sample, grade, store, score. It continues where it stopped, and a finished one is only read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gtpo_cli.errors import EvaluationError
from gtpo_cli.evaluation.benchmark import Benchmark
from gtpo_cli.evaluation.entropy import mean_entropies
from gtpo_cli.evaluation.grading import Grader
from gtpo_cli.evaluation.records import Conditions, EvaluatedProblem, Results, data_digest
from gtpo_cli.evaluation.scores import score_problems
from gtpo_cli.evaluation.store import StoredEvaluation, evaluation_at
from gtpo_cli.generation import Sampler, SamplingParams
from gtpo_cli.models import Policy
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import EvaluationRecipe
from gtpo_cli.rollout import Prompt, sample
from gtpo_cli.run_folder import RunFolder
from gtpo_cli.seeds import derive_seed

_COMPLETIONS_AT_ONCE = 256  # sampled, graded and stored together: what a kill can cost

Progress = Callable[[int, int], None]  # problems done, problems in all


@dataclass(frozen=True, slots=True)
class Subject:
    """What is evaluated."""

    policy: Policy  # its temperature is the evaluation's
    sampler: Sampler


def find_evaluation(recipe: Recipe, run: RunFolder, benchmark: Benchmark, subject: str) -> StoredEvaluation:
    """Where the evaluation of "base" or "step-000600" under the recipe's `evaluation` settings is, or will be."""
    settings, rewards = recipe.evaluation, recipe.rewards
    problems = [problem for problem, _ in benchmark.prompts]
    conditions = Conditions(
        benchmark=benchmark.name,
        split=benchmark.split,
        subject=subject,
        model=recipe.model.name,
        problems=len(problems),
        data_digest=data_digest(problems),
        samples=settings.samples,
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_completion_tokens=settings.max_completion_tokens,
        format_mode=rewards.format.mode,
        system_prompt=recipe.data.system_prompt,
        seed=recipe.seed,
        tags=(rewards.format.tags.reasoning, rewards.format.tags.answer),
        equality=rewards.accuracy.equality,
        reject_copied=rewards.accuracy.reject_copied,
        plugins=tuple(plugin.name for plugin in rewards.plugins),
    )
    return evaluation_at(run, conditions)


def evaluate(
    recipe: Recipe,
    load: Callable[[], Subject],
    benchmark: Benchmark,
    stored: StoredEvaluation,
    grader: Grader,
    *,
    again: bool = False,
    progress: Progress = lambda done, total: None,
) -> Results:
    """Evaluate what is not on disk yet, and score everything. `load` is called when something has to be sampled.

    What is sampled for a problem depends on the recipe's seed, the benchmark and the problem's place in it, never on
    what was sampled before, so an evaluation that was killed ends with the results of one that was not. `again` samples
    everything anew. Raises EvaluationError, GenerationError, RewardError.
    """
    settings = recipe.evaluation
    check_settings(settings)
    if stored.finished and not again:
        results = stored.results()
        settings = _with_stored_ks(settings, results)
        if set(settings.pass_k) <= set(results.ks("pass")) and set(settings.majority_k) <= set(results.ks("maj")):
            return results
    with stored.lock():
        problems = {problem.id: problem for problem in stored.open(again=again)}
        progress(len(problems), len(benchmark.prompts))
        size = max(1, _COMPLETIONS_AT_ONCE // settings.samples)
        for number, start in enumerate(range(0, len(benchmark.prompts), size)):
            block = benchmark.prompts[start : start + size]
            if all(problem.id in problems for problem, _ in block):
                continue
            seed = derive_seed(recipe.seed, f"evaluation {benchmark.name}", number)
            evaluated = sample_and_grade(recipe, load(), block, grader, samples=settings.samples, seed=seed)
            new = [
                problem for problem in evaluated if problem.id not in problems
            ]  # a kill may have cut the block short
            stored.append(new)
            problems |= {problem.id: problem for problem in new}
            progress(len(problems), len(benchmark.prompts))
        in_order = [problems[problem.id] for problem, _ in benchmark.prompts]
        results = score_problems(in_order, settings, grader, seed=recipe.seed, dropped=benchmark.dropped)
        stored.finish(results)
        return results


def sample_and_grade(
    recipe: Recipe, subject: Subject, prompts: list[Prompt], grader: Grader, *, samples: int, seed: int
) -> list[EvaluatedProblem]:
    """`samples` completions of each prompt, graded, with their entropies."""
    settings = recipe.evaluation
    params = SamplingParams(
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_completion_tokens=settings.max_completion_tokens,
        seed=seed,
    )
    groups = sample(subject.sampler, prompts, samples, params)
    return grader.grade(groups, mean_entropies(subject.policy, groups))


def check_settings(settings: EvaluationRecipe) -> None:
    """Raises EvaluationError when a k is larger than the number of completions."""
    for key, ks in (("pass_k", settings.pass_k), ("majority_k", settings.majority_k)):
        if ks and max(ks) > settings.samples:
            raise EvaluationError(
                f"evaluation.{key}: k = {max(ks)} needs as many completions of each problem, and evaluation.samples is "
                f"{settings.samples}; raise it, or leave that k out"
            )


def _with_stored_ks(settings: EvaluationRecipe, results: Results) -> EvaluationRecipe:
    """The settings with every k there are scores for already: asking for another k loses none."""
    return settings.model_copy(
        update={
            "pass_k": tuple(sorted({*settings.pass_k, *results.ks("pass")})),
            "majority_k": tuple(sorted({*settings.majority_k, *results.ks("maj")})),
        }
    )
