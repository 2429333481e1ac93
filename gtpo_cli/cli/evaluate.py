"""gtpo eval"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gtpo_cli.cli.eval_options import check_read, check_split, local_benchmarks, with_options
from gtpo_cli.cli.options import (
    DEFAULT_RECIPE,
    CheckpointOption,
    JsonOption,
    RecipeOption,
    SetOption,
    TargetArgument,
    TrustOption,
    TrustRunOption,
    base_words,
    benchmark_names,
    find_model,
    find_trained,
    names_run,
)
from gtpo_cli.cli.printing import count_progress, print_audit, print_json, print_parts, print_scores, say, suggest
from gtpo_cli.errors import DataError, ended_with
from gtpo_cli.recipe import Recipe, dump_recipe, overridden_keys
from gtpo_cli.recipe.methods import ANSWERS
from gtpo_cli.runs.files import own_folder, write_aside
from gtpo_cli.runs.folder import RunFolder, Trust
from gtpo_cli.terminal.signals import Waiting
from gtpo_cli.terminal.streams import output_is_extra
from gtpo_cli.text import counted, one_line
from gtpo_cli.types import Place

if TYPE_CHECKING:
    from gtpo_cli.data.unseen import Benchmark
    from gtpo_cli.evaluation.loading import Subject
    from gtpo_cli.evaluation.store import Results, StoredEvaluation
    from gtpo_cli.job import Job
    from gtpo_cli.recipe.schema import ModelRecipe
    from gtpo_cli.runs.checkpoints import Checkpoint

    Finished = dict[tuple[str, str], tuple[StoredEvaluation, Results]]  # by benchmark and subject

BASE = "base"
TRAINED = "trained"  # sorts after BASE, as steps do


def evaluate(
    target: TargetArgument = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            "--benchmark",
            "-b",
            metavar="NAME",
            help="Which problems; may be repeated.",
            autocompletion=benchmark_names,
        ),
    ] = None,
    pass_k: Annotated[
        str | None, typer.Option("--pass-k", metavar="K|K,K,...", help="64: 64 completions and k = 1, 2, 4, ..., 64.")
    ] = None,
    maj_k: Annotated[str | None, typer.Option("--maj-k", metavar="K|K,K,...", help="64: k = 4, 8, ..., 64.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, max=100.0, help="Softmax temperature; 0 = greedy, one completion each.")
    ] = None,
    answer: Annotated[
        Place | None,
        typer.Option(help="Read answers there, and the last one counts, as papers on published models do."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="A sample of N problems, always the same.", metavar="N", min=1)
    ] = None,
    data_path: Annotated[
        Path | None, typer.Option(help="Local data: a file, a folder with one file per split, or a folder of such.")
    ] = None,
    split: Annotated[str, typer.Option(help="The benchmark's split; a file is used whole.")] = "test",
    checkpoint: CheckpointOption = "best",
    base: Annotated[bool, typer.Option("--base", help="Evaluate the untrained model too.")] = False,
    by: Annotated[
        str | None, typer.Option("--by", metavar="COLUMN", help="Scores for each value of a column of the data too.")
    ] = None,
    audit: Annotated[bool, typer.Option("--audit", help="List answers that the grader may have misjudged.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Sample again what is stored already.")] = False,
    as_json: JsonOption = False,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    trust_remote_code: TrustOption = False,
    trust_run_code: TrustRunOption = False,
) -> None:
    """Measure a trained model on unseen problems: accuracy, pass@k, maj@k, format, entropy, length.

    Without a target, it measures the best checkpoint of the latest run on the benchmark it was trained on. Completions
    are stored in the run folder as they come, so the same command continues an interrupted evaluation.

    gtpo eval --base

    gtpo eval runs/my-run --benchmark aime24 --benchmark amc23 --pass-k 64

    gtpo eval Qwen/Qwen2.5-Math-1.5B-Instruct --benchmark math500 --answer boxed --temperature 0
    """
    words: str | None = None
    own: Recipe | None
    set_ = [*([] if answer is None else [f"rewards.answer={answer}", "rewards.format.mode=presence"]), *(set_ or [])]
    keys = overridden_keys(set_)
    options = {
        "benchmarks": benchmark,
        "pass_k": pass_k,
        "majority_k": maj_k,
        "limit": limit,
        "temperature": temperature,
    }
    check_read(keys, {f"evaluation.{key}": value for key, value in options.items()})
    if names_run(target):
        if recipe is not None:
            raise typer.BadParameter("a run has its own recipe; leave --recipe out, or override keys with --set")
        run, loaded, chosen = find_trained(
            target, checkpoint, what="eval", overrides=set_, trust=Trust(trust_remote_code, trust_run_code)
        )
        if chosen is not None:
            words = f"{run.path}, step {chosen.step} of {loaded.model.before_training}"
        own, adapter = run.recipe(), None
        check_split(own, loaded)
    else:
        model, says_which = str(target), any(key.startswith(_PROBLEMS) for key in keys)
        named = benchmark[0] if benchmark else "gsm8k" if says_which else None
        if checkpoint != "best":
            raise typer.BadParameter(f"{model} is not a run folder: only a run has checkpoints")
        recipe = recipe or (DEFAULT_RECIPE if model.startswith("builtin:") else None)
        trusted = ["model.trust_remote_code=true"] * trust_remote_code
        loaded, chosen, words = find_model(
            model, recipe=recipe, benchmark=named, data_path=data_path, overrides=[*trusted, *(set_ or ())]
        )
        run, own, adapter = _folder_of(model, loaded), None, None if chosen is None else chosen.model
    subjects = [BASE] if chosen is None else [*([BASE] if base else []), _name_of(chosen)]
    _introduce(words, loaded.model, subjects)
    benchmark, samples_given = benchmark or local_benchmarks(loaded, data_path), "evaluation.samples" in keys
    asked = with_options(loaded, benchmark, pass_k, maj_k, limit, temperature, samples_given=samples_given)
    measured = _find_subjects(asked, run, chosen, subjects, adapter=adapter, keep=keys)
    benchmarks = _load_benchmarks(measured[-1].job, split, data_path, by)
    if not names_run(target):
        _create_folder(run, loaded)
    if not as_json:  # the run folder has all results
        output_is_extra()
    how = "the same command without --again" if again else "the same command"
    with ended_with(lambda: f": the completions so far are stored, and {how} continues"):
        finished = _evaluate(run, measured, benchmarks, again=again)
    if as_json:
        print_json({"run": run.path, "evaluations": _document(finished, benchmarks, audit=audit)})
        return
    for one in benchmarks:
        _print(one, asked, {subject: finished[one.name, subject] for subject in subjects}, by=by, audit=audit)
    if len(benchmarks) > 1:
        every = {one.name: {subject: finished[one.name, subject][1] for subject in subjects} for one in benchmarks}
        print_parts("benchmark", every, frequent={one.name: one.most_frequent() for one in benchmarks})
    if len(subjects) > 1:
        suggest("compare", f"{run.path}@{BASE}", run.path)
    else:
        suggest("report", run.path)


def _name_of(checkpoint: Checkpoint) -> str:
    """Return the subject's name: the adapter of another program does not say its step."""
    return f"step-{checkpoint.step:06d}" if checkpoint.step else TRAINED


# Keys that say which problems a model is asked.
_PROBLEMS = ("data.benchmark", "data.path", "data.dataset", "data.mixture", "evaluation.benchmarks")


def _find_subjects(
    recipe: Recipe,
    run: RunFolder,
    checkpoint: Checkpoint | None,
    names: list[str],
    *,
    adapter: Path | None,
    keep: Sequence[str],
) -> list[Subject]:
    """Find the models to measure. `adapter`: the folder of an adapter without a run, which may change."""
    from gtpo_cli.evaluation.loading import Subject
    from gtpo_cli.machine.resolve import measuring_job
    from gtpo_cli.training.start import start_of

    start = start_of(recipe.model, run) if BASE in names else None
    jobs: dict[Path | None, Job] = {}  # by the folder of full weights; adapters share the job of their base
    found: list[Subject] = []
    for name in names:
        of = start if name == BASE else checkpoint
        whole = of.model if of is not None and of.has_full_weights else None
        if whole not in jobs:
            jobs[whole] = measuring_job(
                recipe, of, temperature=recipe.evaluation.temperature, adapter=adapter, keep=keep
            )
        found.append(Subject(name, jobs[whole], of, kept=adapter is None and of is not None))
    return found


def _evaluate(run: RunFolder, subjects: list[Subject], benchmarks: list[Benchmark], *, again: bool) -> Finished:
    """Evaluate every subject on every benchmark."""
    from gtpo_cli.evaluation.loading import PolicyLoader
    from gtpo_cli.evaluation.measure import evaluate as run_evaluation
    from gtpo_cli.evaluation.measure import find_evaluation
    from gtpo_cli.rewards import Scorer

    recipe = subjects[-1].job.recipe
    loader, finished = PolicyLoader(say), {}
    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        for subject in subjects:
            load = functools.partial(loader.load, subject)  # called only to sample
            for benchmark in benchmarks:
                with Waiting(say, f"reading {recipe.model.name}"):
                    stored = find_evaluation(run, benchmark, subject)
                with count_progress(f"{benchmark.name} {subject.name}") as progress:
                    results = run_evaluation(
                        recipe.evaluation, load, benchmark, stored, scorer, again=again, seed=recipe.seed,
                        progress=progress,
                    )  # fmt: skip
                finished[benchmark.name, subject.name] = stored, results
    return finished


# -- folders and benchmarks -------------------------------------------------------------------------------------------


def _folder_of(model: str, recipe: Recipe) -> RunFolder:
    """Return the folder of a model without a run: <output_dir>/models/<name>."""
    name = re.sub(r"[^\w.-]+", "-", model).strip("-.") or Path(model).resolve().name  # of "." and ".."
    return RunFolder(Path(recipe.output_dir) / "models" / name)


def _create_folder(run: RunFolder, recipe: Recipe) -> None:
    """Create the folder of a model without a run, after its tokenizer and the problems were loaded."""
    run.check_links()
    own_folder(run.path.parent)
    own_folder(run.path)
    write_aside(run.recipe_file, dump_recipe(recipe))


def _load_benchmarks(job: Job, split: str, data_path: Path | None, by: str | None) -> list[Benchmark]:
    from gtpo_cli.data.unseen import load_benchmark

    names = job.recipe.evaluation.benchmarks
    if data_path is not None:
        sharing = [name for name in names if not (data_path.expanduser() / name).is_dir()]
        if len(sharing) > 1:
            raise DataError(
                f"--data-path {data_path}: would be read as {' and as '.join(sharing)}; name one --benchmark, or a "
                "folder with a subfolder for each of them"
            )
    benchmarks = []
    for name in names:
        loaded = load_benchmark(
            job.recipe, name, job.encoder, max_seq_length=job.model.context, split=split, data_path=data_path,
            by=by,
        )  # fmt: skip
        for note in loaded.notes:
            print(note, flush=True)
        benchmarks.append(loaded)
    return benchmarks


# -- output -----------------------------------------------------------------------------------------------------------


def _introduce(words: str | None, model: ModelRecipe, subjects: list[str]) -> None:
    """Print what is evaluated, if the target's name does not say it."""
    if words is not None:
        print(words, flush=True)
    if BASE in subjects:
        several = len(subjects) > 1
        what = f"{base_words(model)}, with the trained one's prompts and rewards" if several else model.name
        print(f"{BASE} is {what}", flush=True)


def _scores(results: Results) -> dict[str, Any]:
    return {
        name: {"estimate": score.interval.estimate, "interval_95": [score.interval.low, score.interval.high]}
        for name, score in results.scores.items()
    }


def _frequent(benchmark: Benchmark, ids: Sequence[str] | None = None) -> dict[str, Any] | None:
    found = benchmark.most_frequent(ids)
    return None if found is None else {"answer": found[0], "share": found[1]}


def _parts(benchmark: Benchmark, results: Results) -> Mapping[str, Sequence[str]]:
    """The ids of the problems by the column of --by; without it, by part of a mixture."""
    return benchmark.parts or results.parts


def _document(finished: Finished, benchmarks: Sequence[Benchmark], *, audit: bool) -> list[dict[str, Any]]:
    from gtpo_cli.evaluation.misjudged import audit as find_misjudged

    by_name = {one.name: one for one in benchmarks}
    return [
        {
            "benchmark": benchmark,
            "subject": subject,
            "model": stored.conditions.model,
            "folder": stored.path,
            "problems": len(results.problem_ids),
            "dropped": results.dropped,
            "samples": stored.conditions.samples,
            "most_frequent_answer": _frequent(by_name[benchmark]),
            "scores": _scores(results),
            "parts": {
                value: {
                    "problems": len(ids),
                    "most_frequent_answer": _frequent(by_name[benchmark], ids),
                    "scores": _scores(results.part(ids)),
                }
                for value, ids in _parts(by_name[benchmark], results).items()
            },
            **({"audit": find_misjudged(stored.problems())} if audit else {}),
        }
        for (benchmark, subject), (stored, results) in finished.items()
    ]


def _print(
    benchmark: Benchmark,
    recipe: Recipe,
    finished: dict[str, tuple[StoredEvaluation, Results]],
    *,
    by: str | None,
    audit: bool,
) -> None:
    """Print the scores of all subjects on a benchmark, and where they are stored."""
    from gtpo_cli.tools.report.tables import score_number

    settings = recipe.evaluation
    how = f"temperature {settings.temperature:g}" if settings.temperature else "greedy (temperature 0)"
    print(
        f"\n{benchmark.name} {benchmark.split}: {counted(len(benchmark.prompts), 'problem')}, "
        f"{counted(settings.samples, 'completion')} each, {how}; "
        "mean (95 % interval over problems)"
    )
    scores = {subject: results for subject, (_, results) in finished.items()}
    print_scores(scores)
    if frequent := benchmark.most_frequent():
        answer, share = one_line(frequent[0], most=30), score_number("accuracy", frequent[1])
        print(f"the most frequent answer, {answer}, is right for {share} of these problems")
    parts = _parts(benchmark, next(iter(scores.values())))
    if parts:
        print_parts(
            by or "part",
            {value: {subject: one.part(ids) for subject, one in scores.items()} for value, ids in parts.items()},
            frequent={value: benchmark.most_frequent(ids) for value, ids in parts.items()},
        )
    for subject, (stored, results) in finished.items():
        if results.scores["unparsable_share"].interval.estimate == 1:
            others = " or ".join(place for place in ANSWERS if place != recipe.rewards.answer)
            print(
                f"{subject}: no completion has an answer where it counts (rewards.answer: {recipe.rewards.answer}), so "
                f"none can be right; to look elsewhere: gtpo eval ... --answer {others}; what was written is in "
                "samples.jsonl"
            )
        if "score" in results.scores:
            failed = [c.failed for problem in stored.problems() for c in problem.completions if c.failed]
            if failed:
                of_all = f"{counted(len(failed), 'completion')} of {len(results.problem_ids) * settings.samples}"
                said = "the task's verifier raised an exception over"
                print(f"{subject}: {said} {of_all}, which count as wrong; the first: {failed[0]}")
        if audit:
            print_audit(subject, stored.problems())
        print(f"{subject}: {stored.path}")
