"""Run one evaluation: sample, grade, store, score. It continues where it stopped; a finished one is only read."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

from gtpo_cli import rewards as grader
from gtpo_cli.data import Prompt
from gtpo_cli.data.unseen import Benchmark
from gtpo_cli.estimators import best_of_k, first_k_pass, majority_of_votes, mean_interval, pass_at_k, vote_classes
from gtpo_cli.evaluation.loading import PolicyAndSampler, Subject
from gtpo_cli.evaluation.probe import mean_entropies
from gtpo_cli.evaluation.store import (
    COLUMNS,
    OWN_REWARD,
    Conditions,
    EvaluatedCompletion,
    EvaluatedProblem,
    Results,
    Score,
    StoredEvaluation,
    columns_digest,
    data_digest,
    evaluation_at,
    is_share,
    problem_digest,
)
from gtpo_cli.policy.sampler import SamplingParams, sample, sample_blocks
from gtpo_cli.recipe.data import GYM
from gtpo_cli.recipe.schema import EvaluationRecipe
from gtpo_cli.recipe.section import code_names
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.runs.user_code import code_digest
from gtpo_cli.seeds import derive_seed
from gtpo_cli.tasks.gym import version as gym_version
from gtpo_cli.types import CodeName, Completion, Group, Problem

_COMPLETIONS_AT_ONCE = 256  # measured, graded and stored together
_ENTROPIES = 1024  # of a sample: its mean is then known to two standard deviations of a completion's entropy over 32

Progress = Callable[[int, int], None]  # (problems done, all problems)


def find_evaluation(run: RunFolder, benchmark: Benchmark, subject: Subject) -> StoredEvaluation:
    """Return the stored or future evaluation of a subject, with the settings of its job's recipe."""
    recipe = subject.job.recipe
    problems, settings = [problem for problem, _ in benchmark.prompts], recipe.decisive
    sampling = {key: settings.pop(key) for key in tuple(settings) if key.startswith("evaluation.")}
    tasks = {problem.entry.task for problem in problems if problem.entry is not None}  # which score by themselves
    names = [name for _, name in code_names(recipe.rewards)] + [CodeName(name) for name in sorted(tasks) if ":" in name]
    if tasks:
        settings["data.config"] = recipe.data.config
    settings.pop("rewards.plugins", None)
    settings |= {f"{OWN_REWARD}{name}": code_digest(name) for name in names}
    if recipe.rewards.plugins:
        settings[COLUMNS] = columns_digest(problems)
    conditions = Conditions(
        benchmark=benchmark.name,
        split=benchmark.split,
        subject=subject.name,
        model=recipe.model.before_training,
        problems=len(problems),
        data_digest=data_digest(problems),
        seed=recipe.seed,
        **{key.removeprefix("evaluation."): value for key, value in sampling.items()},
        settings=settings,
        weights=subject.weights,
        grader=grader_version() + (f", reasoning-gym {gym_version()}" if any(GYM in name for name in tasks) else ""),
    )
    return evaluation_at(run, conditions)


def grader_version() -> str:
    """Name the code that judges answers: a digest of gtpo's grader, and math-verify's version."""
    return f"{_digest_of(sorted(Path(grader.__file__).parent.glob('*.py')))}, math-verify {version('math-verify')}"


def _digest_of(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def evaluate(
    settings: EvaluationRecipe,
    load: Callable[[], PolicyAndSampler],
    benchmark: Benchmark,
    stored: StoredEvaluation,
    scorer: Scorer,
    *,
    again: bool = False,
    seed: int,
    progress: Progress = lambda done, total: None,
) -> Results:
    """Evaluate what is not on disk yet, and score everything. `load` is called only if something has to be sampled.

    All problems are sampled at once and stored as they finish. A kill loses unfinished completions and at most 256
    finished ones.

    The samples of a problem depend on the seed, the benchmark and the problem's position, not on earlier
    samples. So a killed evaluation ends with the same results as an undisturbed one. `again` samples everything again.
    Raises EvaluationError, GenerationError, RewardError.
    """
    if stored.finished and not again:
        results = stored.results()
        settings = _with_stored_ks(settings, results)
        if set(settings.pass_k) <= set(results.ks("pass")) and set(settings.majority_k) <= set(results.ks("maj")):
            return results
    with stored.lock():
        problems = {problem.id: problem for problem in stored.open(again=again)}
        missing = [i for i, (problem, _) in enumerate(benchmark.prompts) if problem.id not in problems]
        subject = load() if missing else None  # may take minutes, so progress starts after it
        progress(len(problems), len(benchmark.prompts))

        ended, done = Counter[str](), set(problems)  # completions by problem; problems with all of them

        def count(problem: Problem) -> None:
            ended[problem.id] += 1
            if ended[problem.id] == settings.samples:
                done.add(problem.id)
                progress(len(done), len(benchmark.prompts))

        def keep(evaluated: list[EvaluatedProblem]) -> None:
            new = [problem for problem in evaluated if problem.id not in problems]  # a killed block is sampled whole
            stored.append(new)
            problems.update({problem.id: problem for problem in new})
            done.update(problems)
            progress(len(done), len(benchmark.prompts))

        if subject is not None:
            _evaluate_problems(settings, subject, benchmark, missing, scorer, seed, count, keep)
        in_order = [problems[problem.id] for problem, _ in benchmark.prompts]
        results = score_problems(in_order, settings, scorer, dropped=benchmark.dropped)
        stored.finish(results)
        return results


def measured_entropies(settings: EvaluationRecipe, problems: int) -> int:
    """Return how many completions of each problem have their entropy measured: the first ones."""
    return settings.samples if settings.entropy == "all" else min(settings.samples, -(-_ENTROPIES // problems))


def _evaluate_problems(
    settings: EvaluationRecipe,
    subject: PolicyAndSampler,
    benchmark: Benchmark,
    wanted: Sequence[int],
    scorer: Scorer,
    seed: int,
    count: Callable[[Problem], None],
    keep: Callable[[list[EvaluatedProblem]], None],
) -> None:
    """Sample the problems with these numbers, and pass them to `keep` about 256 completions at a time. `count` gets the
    problem of each completion that ended.

    Answers are graded as they come. Entropies are measured between two steps of the engine, which stays full. Other
    problems may come too: see `Sampler.sample_blocks`.
    """
    samples, prompts = settings.samples, benchmark.prompts
    size = max(1, _COMPLETIONS_AT_ONCE // samples)
    blocks = range(len(range(0, len(prompts), size)))
    seeds = [derive_seed(seed, f"evaluation {benchmark.name}", block) for block in blocks]
    first = measured_entropies(settings, len(prompts))
    groups: list[Group] = []

    def finish() -> None:
        keep(grade(groups, mean_entropies(subject.policy, groups, first=first), scorer))
        groups.clear()

    def ended(problem: Problem, completion: Completion) -> None:
        scorer.begin(problem, completion)
        count(problem)

    params = _sampling_params(settings)
    coming = sample_blocks(
        subject.sampler, prompts, samples, params, size=size, seeds=seeds, wanted=wanted, ended=ended
    )
    with closing(coming) as sampled:
        for _, group in sampled:
            groups.append(group)
            if len(groups) == size:
                finish()
    if groups:
        finish()


def _sampling_params(settings: EvaluationRecipe, *, seed: int = 0) -> SamplingParams:
    return SamplingParams(
        settings.temperature, settings.top_p, max_completion_tokens=settings.max_completion_tokens, seed=seed
    )


def sample_and_grade(
    settings: EvaluationRecipe,
    subject: PolicyAndSampler,
    prompts: list[Prompt],
    scorer: Scorer,
    *,
    samples: int,
    seed: int,
) -> list[EvaluatedProblem]:
    """Sample `samples` completions of each prompt, measure their entropies and grade them."""
    groups = sample(subject.sampler, prompts, samples, _sampling_params(settings, seed=seed))
    return grade(groups, mean_entropies(subject.policy, groups), scorer)


def grade(groups: Sequence[Group], mean_entropies: Sequence[Sequence[float]], scorer: Scorer) -> list[EvaluatedProblem]:
    """Grade groups, and check which answers can be compared. `mean_entropies`: <H>_i of each group's first completions
    in nats."""
    scored = scorer.score_groups(groups)
    compared = [group for group in scored if group.problem.entry is None]  # a task scores any answer
    answers = dict.fromkeys(verdict.extracted for group in compared for verdict in group.verdicts)
    given = [answer for answer in answers if answer is not None]
    usable = dict(zip(given, scorer.workers.usable_many(given), strict=True))
    return [
        EvaluatedProblem(
            group.problem.id,
            group.problem.question,
            group.problem.gold,
            tuple(
                EvaluatedCompletion(
                    text=completion.text,
                    tokens=len(completion.token_ids),
                    finish_reason=completion.finish_reason,
                    mean_entropy=entropy,
                    answer=verdict.extracted,
                    correct=verdict.correct,
                    parsable=verdict.extracted is not None
                    and (group.problem.entry is not None or usable[verdict.extracted]),
                    strict_format=verdict.strict_format,
                    complete_format=verdict.complete_format,
                    timed_out=verdict.timed_out,
                    score=verdict.score,
                    failed=verdict.failed,
                    plugins=verdict.plugins,
                )
                for completion, verdict, entropy in zip(group.completions, group.verdicts, measured, strict=True)
            ),
            group.problem.part,
        )
        for group, entropies in zip(scored, mean_entropies, strict=True)
        for measured in [[*entropies, *[None] * (len(group.completions) - len(entropies))]]
    ]


def score_problems(
    problems: Sequence[EvaluatedProblem], settings: EvaluationRecipe, scorer: Scorer, *, dropped: int = 0
) -> Results:
    """Compute all scores of problems with equal numbers of completions; no k may exceed that number.

    Each score is a mean over problems with its 95 % interval (`mean_interval`). Names: `records.Results`.
    """
    plugin_scores = [completion.plugins for problem in problems for completion in problem.completions]
    rewards = [name for name in plugin_scores[0] if all(name in scores for scores in plugin_scores)]
    scored = any(completion.score is not None for problem in problems for completion in problem.completions)
    rows = [_scores_of(problem, settings, rewards, scorer, scored=scored) for problem in problems]
    values = {name: tuple(row[name] for row in rows) for name in rows[0]}
    scores = {name: Score(mean_interval(own, share=is_share(name)), own) for name, own in values.items()}
    return Results(
        problem_ids=tuple(problem.id for problem in problems),
        problem_digests=tuple(problem_digest(problem.question, problem.gold) for problem in problems),
        problem_parts=tuple(problem.part for problem in problems),
        scores=scores,
        dropped=dropped,
    )


def _scores_of(
    problem: EvaluatedProblem, settings: EvaluationRecipe, rewards: Sequence[str], scorer: Scorer, *, scored: bool
) -> dict[str, float]:
    completions = problem.completions
    correct = [completion.correct for completion in completions]
    votes = equal_votes(problem, scorer) if settings.majority_k else []
    return {
        "accuracy": fmean(correct),
        **{f"pass@{k}": pass_at_k(len(correct), sum(correct), k) for k in settings.pass_k},
        **{f"first_pass@{k}": float(first_k_pass(correct, k)) for k in settings.pass_k},
        **{f"maj@{k}": majority_of_votes(votes, k) for k in settings.majority_k},
        **({"score": fmean(problem.scores)} if scored else {}),
        **{f"best@{k}": best_of_k(problem.scores, k) for k in settings.pass_k if scored and k > 1},
        "format_rate": fmean(completion.complete_format for completion in completions),
        "strict_format_rate": fmean(completion.strict_format for completion in completions),
        "truncated_share": fmean(completion.truncated for completion in completions),
        "unparsable_share": fmean(not completion.parsable for completion in completions),
        "timed_out_share": fmean(completion.timed_out for completion in completions),
        "mean_entropy": fmean(problem.entropies),
        "mean_length": fmean(completion.tokens for completion in completions),
        **{name: fmean(completion.plugins[name] for completion in completions) for name in rewards},
    }


def equal_votes(problem: EvaluatedProblem, scorer: Scorer) -> list[int | None]:
    """Return the class of equal answers that each completion votes for: see `vote_classes`."""
    return vote_classes(
        [completion.answer for completion in problem.completions],
        [completion.correct for completion in problem.completions],
        lambda pairs: [grade.equal for grade in scorer.workers.equal_many(pairs)],
    )


def _with_stored_ks(settings: EvaluationRecipe, results: Results) -> EvaluationRecipe:
    """Add every k that already has scores to the settings, so that a new k loses no old scores."""
    return settings.model_copy(
        update={
            "pass_k": tuple(sorted({*settings.pass_k, *results.ks("pass")})),
            "majority_k": tuple(sorted({*settings.majority_k, *results.ks("maj")})),
        }
    )
