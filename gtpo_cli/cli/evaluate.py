"""gtpo eval"""

from __future__ import annotations

import difflib
import functools
import json
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gtpo_cli.cli.options import RUNS, RecipeOption, SetOption, TrustOption, find_run, typed_checkpoint
from gtpo_cli.cli.printing import suggest
from gtpo_cli.cli.streams import output_is_extra
from gtpo_cli.errors import WORDS, Ended

if TYPE_CHECKING:
    from gtpo_cli.evaluation.problems import Benchmark
    from gtpo_cli.evaluation.records import Results
    from gtpo_cli.evaluation.store import StoredEvaluation
    from gtpo_cli.evaluation.subject import Checkpoint, SubjectLoader
    from gtpo_cli.recipe import Recipe
    from gtpo_cli.rewards import Scorer
    from gtpo_cli.run_folder import RunFolder

BASE = "base"


@dataclass(frozen=True, slots=True)
class _Target:
    """What is evaluated, and where it is stored. Without a checkpoint: an untrained model."""

    run: RunFolder
    recipe: Recipe
    checkpoint: Checkpoint | None
    is_new: bool = False  # has no folder yet


def evaluate(
    target: Annotated[
        str | None,
        typer.Argument(metavar="RUN|MODEL", help="A run folder, builtin:tiny, a hub id or a model folder."),
    ] = None,
    benchmark: Annotated[
        list[str] | None, typer.Option("--benchmark", "-b", metavar="NAME", help="Which problems; may be repeated.")
    ] = None,
    pass_k: Annotated[
        str | None, typer.Option("--pass-k", metavar="K|K,K,...", help="64: 64 completions, k = 1, 2, 4, ..., 64.")
    ] = None,
    maj_k: Annotated[str | None, typer.Option("--maj-k", metavar="K|K,K,...", help="64: k = 4, 8, ..., 64.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many problems.", min=1)] = None,
    data_path: Annotated[
        Path | None, typer.Option(help="Local data: a file, or a folder with a file a split (or such folders).")
    ] = None,
    split: Annotated[str, typer.Option(help="The split of the benchmark.")] = "test",
    checkpoint: Annotated[str, typer.Option(metavar="best|last|STEP", help="Which checkpoint of a run.")] = "best",
    base: Annotated[bool, typer.Option("--base", help="Evaluate the untrained model beside the trained.")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="List answers that the grader may have misjudged.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Sample anew what is stored already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    recipe: RecipeOption = None,
    set_: SetOption = None,
    trust_remote_code: TrustOption = False,
) -> None:
    """Measure a trained model on problems it has not seen: accuracy, pass@k, maj@k, format, entropy, length.

    Without a target: the best checkpoint of the latest run, on the benchmark it was trained on. Completions are stored
    in the run folder as they come: the same command continues an evaluation that was interrupted.

    gtpo eval --base

    gtpo eval runs/my-run --benchmark aime24 --benchmark amc23 --pass-k 64
    """
    from gtpo_cli.evaluation.subject import SubjectLoader
    from gtpo_cli.rewards import Scorer

    found = _find_target(target, checkpoint, recipe, benchmark, set_ or [], trust=trust_remote_code)
    chosen = _with_options(found, benchmark, pass_k, maj_k, limit)
    subjects = [BASE] if chosen.checkpoint is None else [f"step-{chosen.checkpoint.step:06d}"]
    if base and BASE not in subjects:
        subjects.insert(0, BASE)
    finished: dict[tuple[str, str], tuple[StoredEvaluation, Results]] = {}
    say = _silent if as_json else _say
    benchmarks = _load_benchmarks(chosen, split, data_path, say)
    if found.is_new:
        _begin(found)
    if not as_json:  # the store has everything
        output_is_extra()
    try:
        loader = SubjectLoader(chosen.recipe, chosen.checkpoint)
        with Scorer(chosen.recipe.rewards) as scorer:
            for subject in subjects:
                for loaded, done in zip(
                    benchmarks, _evaluate(chosen, subject, loader, benchmarks, scorer, again, as_json), strict=True
                ):
                    finished[loaded.name, subject] = done
    except (KeyboardInterrupt, Ended) as end:
        number = end.number if isinstance(end, Ended) else signal.SIGINT
        raise Ended(number, f"{WORDS[number]}: what was sampled is stored, and the same command continues") from None
    if as_json:
        print(json.dumps(_document(finished)))
        return
    _print(chosen, benchmarks, subjects, finished, audit=audit)
    both = chosen.checkpoint is not None and len(subjects) > 1
    if both:
        suggest("compare", f"{chosen.run.path}@{BASE}", chosen.run.path)
    else:
        suggest("report", chosen.run.path)


def _evaluate(
    target: _Target,
    subject: str,
    loader: SubjectLoader,
    benchmarks: list[Benchmark],
    scorer: Scorer,
    again: bool,
    quiet: bool,
) -> list[tuple[StoredEvaluation, Results]]:
    from gtpo_cli.cli.progress import count_progress
    from gtpo_cli.evaluation.measure import evaluate as run_evaluation
    from gtpo_cli.evaluation.measure import find_evaluation

    load = functools.partial(loader.load, trained=subject != BASE)  # called only if something has to be sampled
    done = []
    for benchmark in benchmarks:
        stored = find_evaluation(target.recipe, target.run, benchmark, subject)
        with count_progress(f"{benchmark.name} {subject}", quiet=quiet) as progress:
            results = run_evaluation(target.recipe, load, benchmark, stored, scorer, again=again, progress=progress)
        done.append((stored, results))
    return done


# -- what is evaluated ------------------------------------------------------------------------------------------------


def _find_target(
    target: str | None,
    which: str,
    recipe: str | None,
    benchmarks: list[str] | None,
    overrides: list[str],
    *,
    trust: bool,
) -> _Target:
    from gtpo_cli.evaluation.subject import choose_checkpoint

    is_run = target is None or (Path(target) / "recipe.yaml").is_file() or Path(target).parent == RUNS
    if not is_run:
        assert target is not None
        return _bare_model(target, recipe, benchmarks, overrides)
    if recipe is not None:
        raise typer.BadParameter("a run has its own recipe; leave --recipe out, or override keys with --set")
    run = find_run(target, what="eval")
    loaded = run.recipe_to_run(overrides, trust_remote_code=trust)
    if not run.metrics_file.exists() and not run.checkpoints.exists():
        return _Target(run, loaded, None)  # the folder of an untrained model that was evaluated before
    return _Target(run, loaded, choose_checkpoint(run, typed_checkpoint(which)))


def _bare_model(model: str, recipe: str | None, benchmarks: list[str] | None, overrides: list[str]) -> _Target:
    """A model without a run gets a folder of its own: <output_dir>/models/<name>."""
    from gtpo_cli.cli.train import DEFAULT_RECIPE
    from gtpo_cli.recipe import build_recipe, load_recipe
    from gtpo_cli.run_folder import RunFolder

    named = [f"model.name={json.dumps(model)}", *overrides]
    if recipe is not None or model.startswith("builtin:"):
        loaded = load_recipe(recipe or DEFAULT_RECIPE, named)
    else:
        plain = {"name": model, "load_in_4bit": False, "lora": None}
        trained_on = {"benchmark": (benchmarks or ["gsm8k"])[0]}
        loaded = build_recipe({"model": plain, "data": trained_on}, overrides, where=model)
    name = re.sub(r"[^\w.-]+", "-", model).strip("-.")
    run = RunFolder(Path(loaded.output_dir) / "models" / name)
    return _Target(run, loaded, None, is_new=True)


def _begin(target: _Target) -> None:
    """Write the folder of a model without a run: not before its tokenizer and the problems were there."""
    from gtpo_cli.recipe import dump_recipe
    from gtpo_cli.run_folder import write_atomically

    target.run.path.mkdir(parents=True, exist_ok=True)
    write_atomically(target.run.recipe_file, dump_recipe(target.recipe))


def _with_options(
    target: _Target, benchmarks: list[str] | None, pass_k: str | None, maj_k: str | None, limit: int | None
) -> _Target:
    """The target with its recipe's `evaluation` section as the options say."""
    settings = target.recipe.evaluation
    changes: dict[str, Any] = {}
    if benchmarks:
        changes["benchmarks"] = tuple(_benchmark_name(name) for name in benchmarks)
    if limit is not None:
        changes["limit"] = limit
    asked_pass = None if pass_k is None else _ks(pass_k, "--pass-k", first=1)
    asked_majority = None if maj_k is None else _ks(maj_k, "--maj-k", first=4)
    if asked_pass or asked_majority:
        samples = max((*(asked_pass or ()), *(asked_majority or ()), 0 if asked_pass else settings.samples))
        changes["samples"] = samples
        changes["pass_k"] = asked_pass or tuple(k for k in settings.pass_k if k <= samples)
        changes["majority_k"] = asked_majority or tuple(k for k in settings.majority_k if k <= samples)
    recipe = target.recipe.model_copy(update={"evaluation": settings.model_copy(update=changes)})
    return _Target(target.run, recipe, target.checkpoint)


def _ks(text: str, option: str, *, first: int) -> tuple[int, ...]:
    """ "64" -> first, 2 first, ..., 64; "1,8,64" -> as it is."""
    try:
        ks = sorted({int(part) for part in text.split(",")})
    except ValueError:
        ks = [0]
    if ks[0] < 1:
        raise typer.BadParameter(f"{option} {text}: expected a number like 64, or a list like 1,8,64")
    if "," in text:
        return tuple(ks)
    largest = ks[0]
    powers = [first * 2**i for i in range(largest.bit_length()) if first * 2**i < largest]
    return (*powers, largest)


def _benchmark_name(name: str) -> str:
    from typing import get_args

    from gtpo_cli.errors import EvaluationError
    from gtpo_cli.recipe.schema import Benchmark as Name

    known = get_args(Name)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise EvaluationError(f"--benchmark {name}: no such benchmark; {hint}")
    return name


def _load_benchmarks(
    target: _Target, split: str, data_path: Path | None, say: Callable[[str], None]
) -> list[Benchmark]:
    from gtpo_cli.evaluation.measure import check_settings
    from gtpo_cli.evaluation.problems import load_benchmark
    from gtpo_cli.evaluation.subject import load_prompting

    check_settings(target.recipe.evaluation)
    tokenizer, longest = load_prompting(target.recipe, target.checkpoint)
    benchmarks = []
    for name in target.recipe.evaluation.benchmarks:
        loaded = load_benchmark(
            target.recipe, name, tokenizer, max_seq_length=longest, split=split, data_path=data_path
        )
        for note in loaded.notes:
            say(note)
        benchmarks.append(loaded)
    return benchmarks


# -- what is said -----------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(text, flush=True)


def _silent(text: str) -> None:
    pass


def _document(finished: dict[tuple[str, str], tuple[StoredEvaluation, Results]]) -> list[dict[str, Any]]:
    return [
        {
            "benchmark": benchmark,
            "subject": subject,
            "folder": str(stored.path),
            "problems": len(results.problem_ids),
            "dropped": results.dropped,
            "samples": stored.conditions.samples,
            "scores": {
                name: {"estimate": score.interval.estimate, "interval_95": [score.interval.low, score.interval.high]}
                for name, score in results.scores.items()
            },
        }
        for (benchmark, subject), (stored, results) in finished.items()
    ]


def _print(
    target: _Target,
    benchmarks: list[Benchmark],
    subjects: list[str],
    finished: dict[tuple[str, str], tuple[StoredEvaluation, Results]],
    *,
    audit: bool,
) -> None:
    from gtpo_cli.cli.printing import print_audit, print_scores

    for benchmark in benchmarks:
        settings = target.recipe.evaluation
        print(
            f"\n{benchmark.name} {benchmark.split}: {len(benchmark.prompts)} problems, {settings.samples} completions "
            f"each, temperature {settings.temperature:g}; mean (95 % interval over problems)"
        )
        print_scores({subject: finished[benchmark.name, subject][1] for subject in subjects})
        for subject in subjects:
            stored, _ = finished[benchmark.name, subject]
            if audit:
                print_audit(subject, stored.problems())
            print(f"{subject}: {stored.path}")
