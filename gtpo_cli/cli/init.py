"""gtpo init"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from gtpo_cli.cli.options import GpuOption, benchmark_names, gpu_asked, gpu_here
from gtpo_cli.cli.printing import suggest
from gtpo_cli.errors import RecipeError
from gtpo_cli.files import write_aside
from gtpo_cli.text import did_you_mean

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


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
            help="Data of your own: a file, a folder with one a split (jsonl, json, parquet, csv), or a hub id.",
        ),
    ] = None,
    gpu: GpuOption = None,
) -> None:
    """Write a recipe for your model, data and GPU: the paper's setting, made smaller until it fits by gtpo plan.

    Asks for what is not given. With --data and --benchmark the file is read as that benchmark.

    gtpo init --model Qwen/Qwen2.5-3B-Instruct --benchmark gsm8k --gpu 4090
    """
    if file.exists():
        raise RecipeError(f"{file}: exists already; name another file: gtpo init OTHER.yaml")
    _check_there(model, benchmark or data, gpu)
    model = model or typer.prompt("Model (a hub id, a folder, or builtin:tiny)")
    if benchmark is None and data is None:
        asked = typer.prompt(f"Train on ({', '.join(trainable())}, or a file of your own, or a hub id)")
        benchmark, data = (None, asked) if _is_path(asked) or _HUB_ID.fullmatch(asked) else (asked, None)
    if benchmark is not None:
        _check_benchmark(benchmark, data)
    size = gpu_asked(gpu) if gpu else gpu_here()
    if size is None and _needs_gpu(model):
        size = gpu_asked(typer.prompt("GPU (its memory, as 24GiB, or its name, as 4090)"))

    from gtpo_cli.planning.first_recipe import first_recipe

    chosen = {"benchmark": benchmark} if benchmark else {}
    if data is not None:
        of_hub = benchmark in (None, "hub") and not _is_path(data) and _HUB_ID.fullmatch(data)
        chosen = {"benchmark": "hub" if of_hub else "local"} | chosen | {"dataset" if of_hub else "path": data}
    text, plan = first_recipe(model, chosen, size)
    write_aside(file, text.encode())
    for note in plan.notes:
        print(f"note: {note}")
    print(f"{file}: needs {plan.memory.peak / 2**30:.1f} of {plan.gpu / 2**30:.4g} GiB by the plan")
    suggest("train", "--recipe", file, "--dry-run")


def _is_path(data: str) -> bool:
    return Path(data).expanduser().exists()


def trainable() -> list[str]:
    """The benchmarks with a training split."""
    from gtpo_cli.data.benchmarks import BENCHMARKS

    hubs = {name: spec.hub for name, spec in BENCHMARKS.items()}
    return [*(name for name, hub in hubs.items() if hub and "train" in (hub.splits or ())), "arithmetic"]


def _needs_gpu(model: str) -> bool:
    return not model.startswith("builtin:")


def _check_there(model: str | None, data: str | None, gpu: str | None) -> None:
    """Without a terminal nobody can be asked. Raises RecipeError with all that is missing."""
    if sys.stdin.isatty():
        return
    missing = [] if model else ["--model"]
    missing += [] if data else ["--benchmark or --data"]
    if not gpu and (model is None or _needs_gpu(model)) and gpu_here() is None:
        missing.append("--gpu")
    if missing:
        raise RecipeError(f"gtpo init asks only on a terminal; here it needs {', '.join(missing)} too (gtpo init -h)")


def _check_benchmark(name: str, data: str | None) -> None:
    known = trainable() if data is None else benchmark_names()
    if name in ("local", "hub") and data is None:
        raise RecipeError(f"--benchmark {name}: is data of your own; name it with --data")
    if name in known:
        return
    if name in benchmark_names():
        raise RecipeError(
            f"--benchmark {name}: has no problems to train on, it is for gtpo eval; choose {', '.join(known)}, or a "
            "file of your own with --data"
        )
    hint = did_you_mean(name, known, f"there are {', '.join(known)}, and --data for a file of your own")
    raise RecipeError(f"--benchmark {name}: no such benchmark; {hint}")
