"""gtpo export"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gtpo_cli.cli.options import CheckpointOption, RunArgument, TrustOption, TrustRunOption, find_checkpoint, find_run
from gtpo_cli.cli.printing import say, suggest
from gtpo_cli.errors import ended_with
from gtpo_cli.runs.folder import Trust
from gtpo_cli.terminal.streams import output_is_extra, print_whole
from gtpo_cli.text import counted

if TYPE_CHECKING:
    from gtpo_cli.recipe.schema import ModelRecipe
    from gtpo_cli.tools.export.folder import Exported


def export(
    run: RunArgument = None,
    format_: Annotated[
        Literal["adapter", "merged", "gguf"],
        typer.Option("--format", "-f", help="merged: the whole model; adapter: LoRA only; gguf: for llama.cpp."),
    ] = "merged",
    checkpoint: CheckpointOption = "best",
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write (default: the run's export/FORMAT).")
    ] = None,
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"],
        typer.Option(
            help="Type of the weights; auto: the base's type if it has 16 bits, else bfloat16, or a finer type if "
            "rounding would lose the training."
        ),
    ] = "auto",
    base: Annotated[
        str | None,
        typer.Option(
            metavar="ID|FOLDER", help="The base in full precision, if the run's own base exists only in 4 bit."
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Hub revision of --base.")] = None,
    converter: Annotated[
        str | None, typer.Option(metavar="PATH", help="A checkout of llama.cpp, or its convert_hf_to_gguf.py.")
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="NAME", help="Upload to the hub as this model, e.g. me/my-model; private.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="With --push: visible to everybody.")] = False,
    trust_remote_code: TrustOption = False,
    trust_run_code: TrustRunOption = False,
) -> None:
    """Write a trained model for others to load: as an adapter, merged into its base, or as GGUF.

    The export is loaded again, and its log-probabilities are compared with those of the run's policy. It contains a
    model card with recipe, data, metrics and evaluation.

    gtpo export runs/my-run

    gtpo export runs/my-run --format gguf --converter ~/llama.cpp --push me/my-model
    """
    from gtpo_cli.tools.export.exporter import Request, check_push, export_run
    from gtpo_cli.tools.export.exporter import push as upload

    if public and push is None:
        raise typer.BadParameter("--public is for --push NAME")
    folder = find_run(run, what="export")
    chosen = find_checkpoint(folder, checkpoint)
    if push is not None:
        check_push(push, public=public)
    output_is_extra()
    where = out or folder.export / format_
    request = Request(
        folder, chosen, format_, where, dtype=dtype, base=base, revision=revision, converter=converter,
        hub_name=push, trust=Trust(trust_remote_code, trust_run_code),
    )  # fmt: skip
    with ended_with(lambda: f": {where} is unchanged"):
        exported = export_run(request, say=say)
    _print(exported, where, folder.recipe().model)
    if push is not None:
        message = f"gtpo export, step {chosen.step}"
        print(f"pushed to {upload(where, push, format_=format_, public=public, message=message)}")
    evaluated = any(folder.evaluation.glob(f"*/step-{chosen.step:06d}-*/results.json"))
    suggest("report" if evaluated else "eval", folder.path)


def _print(done: Exported, folder: Path, model: ModelRecipe) -> None:
    from gtpo_cli.tools.export.folder import CARD
    from gtpo_cli.tools.export.using import Use

    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {done.format}, {done.dtype}, {size / 1e6:,.1f} MB")
    print(
        f"compared with the policy on its greedy answers to {counted(done.prompts, 'question')}: "
        f"{done.difference_from_policy}"
    )
    if done.rounding is not None:
        print(f"compared with its base in full precision and the adapter: {done.rounding}")
    for note in done.notes:
        print(note)
    use = Use.here(done, model, folder)
    if done.format == "gguf":
        print_whole(f"to serve it: {use.serving()}")
    else:
        print_whole(f"to load it in Python ({CARD} beside it has the rest):\n{use.loading()}")
