"""gtpo init"""

from __future__ import annotations

import glob
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gtpo_cli.cli.options import GpuOption, benchmark_names, parse_gpu
from gtpo_cli.cli.printing import suggest
from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe.data import is_hub_id
from gtpo_cli.runs.files import write_aside
from gtpo_cli.text import did_you_mean, printable


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The recipe to write.")] = Path("my_recipe.yaml"),
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="MODEL", help="A hub id, a folder, or builtin:tiny.")
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option("--benchmark", "-b", metavar="NAME", help="What to train on.", autocompletion=benchmark_names),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|ID",
            help="Your own data: a file, a folder with one file per split, or a pattern (jsonl, json, parquet, csv, "
            "tsv); or a hub id.",
        ),
    ] = None,
    question: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column of the question, with --data.")
    ] = None,
    answer: Annotated[str | None, typer.Option(metavar="NAME", help="The column of the gold answer.")] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="The split of a folder or a hub id to train on; else train.")
    ] = None,
    gpu: GpuOption = None,
    from_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Translate a training script for TRL or Unsloth (read, never run), or a YAML of TRL; --model, --data "
            "and --benchmark override it.",
        ),
    ] = None,
) -> None:
    """Write a recipe for your model, data and GPU: the paper's settings, scaled down until gtpo plan says they fit.

    It asks for the model and the data if they are not given. With --data and --benchmark, the file is read as that
    benchmark. Without --gpu, the recipe is for this machine's GPU, or for its CPU if it has no GPU.

    gtpo init --model Qwen/Qwen2.5-3B-Instruct --benchmark gsm8k --gpu 4090

    gtpo init mine.yaml --from-config train_grpo.py
    """
    if file.exists():
        raise RecipeError(f"{file}: exists already; name another file: gtpo init OTHER.yaml")
    if from_config is not None:
        if question is not None or answer is not None or split is not None:
            raise RecipeError(
                "--question, --answer, --split: the columns and the split come from --from-config; leave them out, and "
                "set data.columns and data.split in the file that it writes"
            )
        _translate(from_config, file, model, benchmark, data, gpu)
        return
    _check_given(model, benchmark or data)
    model = model or typer.prompt("Model (a hub id, a folder, or builtin:tiny)")
    if benchmark is None and data is None:
        named = typer.prompt(f"Train on ({', '.join(trainable())}, or a file of your own, or a hub id)")
        benchmark, data = (None, named) if _is_path(named) or is_hub_id(named) else (named, None)
    if benchmark is not None:
        _check_benchmark(benchmark, data)
    section = _data_section(benchmark, data)
    if columns := {key: name for key, name in (("question", question), ("answer", answer)) if name is not None}:
        if section["benchmark"] not in ("local", "hub"):
            raise RecipeError(f"--question, --answer: {benchmark} has its own columns; leave them out")
        section["columns"] = columns
    if split is not None:
        section["split"] = split

    from gtpo_cli.machine.first_recipe import first_recipe
    from gtpo_cli.machine.open_keys import gpu_memory

    size = parse_gpu(gpu) if gpu else gpu_memory()
    written = first_recipe(model, section, size)
    write_aside(file, written.text.encode())
    for note in written.plan.notes:
        print(f"note: {note}")
    if size is None and not model.startswith("builtin:"):
        print("note: this machine has no GPU, so the recipe is for its CPU; --gpu 24GiB writes one for a GPU")
    print(f"{file}: needs {written.needs}")
    for line in written.estimates:
        print(line)
    suggest("train", "--recipe", file, "--dry-run")


def _translate(
    source: Path, file: Path, model: str | None, benchmark: str | None, data: str | None, gpu: str | None
) -> None:
    if gpu is not None:
        raise RecipeError(
            "--gpu: the sizes come from --from-config; leave it out, and try gtpo plan --recipe FILE --gpu SIZE"
        )
    if benchmark is not None:
        _check_benchmark(benchmark, data)
    from gtpo_cli.tools.translate.translation import translated_recipe

    written = translated_recipe(source, model=model, data=_data_section(benchmark, data) or None)
    write_aside(file, written.text.encode())
    print(f"{file}: translated from {source} ({written.tool})")
    for line in written.remarks:
        print(printable(line))
    suggest("doctor", "--recipe", file)


def _data_section(benchmark: str | None, data: str | None) -> dict[str, Any]:
    """Return the recipe's `data` section for the options."""
    chosen = {"benchmark": benchmark} if benchmark else {}
    if data is None:
        return chosen
    of_hub = benchmark in (None, "hub") and not _is_path(data) and is_hub_id(data)
    return {"benchmark": "hub" if of_hub else "local"} | chosen | {"dataset" if of_hub else "path": data}


def _is_path(data: str) -> bool:
    """Whether it is a file, a folder or a pattern of files."""
    return glob.has_magic(data) or Path(data).expanduser().exists()


def trainable() -> list[str]:
    """List the benchmarks with a training split."""
    from gtpo_cli.data.benchmarks import BENCHMARKS
    from gtpo_cli.recipe.data import BUILT_IN

    hubs = {name: spec.hub for name, spec in BENCHMARKS.items()}
    return [*(name for name, hub in hubs.items() if hub and "train" in (hub.splits or ())), *BUILT_IN]


def _check_given(model: str | None, data: str | None) -> None:
    """Raise RecipeError for missing options if there is no terminal to ask on."""
    if sys.stdin.isatty():
        return
    missing = [] if model else ["--model"]
    missing += [] if data else ["--benchmark or --data"]
    if missing:
        raise RecipeError(f"gtpo init asks only on a terminal; here it needs {', '.join(missing)} too (gtpo init -h)")


def _check_benchmark(name: str, data: str | None) -> None:
    from gtpo_cli.recipe.data import is_task

    known = trainable() if data is None else benchmark_names()
    if name in ("local", "hub") and data is None:
        raise RecipeError(f"--benchmark {name}: means data of your own; name it with --data")
    if name in known or is_task(name):
        return
    if name in benchmark_names():
        raise RecipeError(
            f"--benchmark {name}: has no training problems and is only for gtpo eval; choose {', '.join(known)}, or "
            "a file of your own with --data"
        )
    hint = did_you_mean(name, known, f"there are {', '.join(known)}, and --data for a file of your own")
    raise RecipeError(f"--benchmark {name}: no such benchmark; {hint}")
