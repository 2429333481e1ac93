"""gtpo plan"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from gtpo_cli.cli.options import DEFAULT_RECIPE, RecipeOption, SetOption, as_typed
from gtpo_cli.cli.printing import suggest
from gtpo_cli.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from gtpo_cli.planning.fit import Plan

EXIT_DOES_NOT_FIT = 1


def plan(
    recipe: RecipeOption = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Its memory, e.g. 24GiB (default: this machine's, else the smallest)."),
    ] = None,
    set_: SetOption = None,
) -> None:
    """Steps, tokens, GPU memory by part, what fits, and an estimate of the hours. Loads no weights.

    gtpo plan --recipe llama8b_gsm8k --gpu 24GiB

    Exit code 1 when the recipe does not fit.
    """
    from gtpo_cli.planning.fit import make_plan

    name = recipe or DEFAULT_RECIPE
    loaded = load_recipe(name, set_ or [])
    size = _bytes(gpu) if gpu else _found()
    made = make_plan(loaded, gpu=size)
    _print_run(made, loaded)
    _print_memory(made)
    _print_verdict(made, loaded, asked=size is not None)
    if not made.fits:
        raise typer.Exit(EXIT_DOES_NOT_FIT)
    suggest("train", "--recipe", name, *as_typed(set_))


def _bytes(text: str) -> float:
    """24GiB, 24GB, 24: gibibytes all, as GPUs are sold."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:Gi?B?)?\s*", text, flags=re.IGNORECASE)
    if match is None or float(match.group(1)) == 0:
        raise typer.BadParameter(f"{text!r} is no size; write e.g. 24GiB", param_hint="--gpu")
    return float(match.group(1)) * 2**30


def _found() -> float | None:
    import torch

    return float(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def _print_run(plan: Plan, recipe: Recipe) -> None:
    shape, counts = plan.shape, plan.counts
    millions = shape.parameters / 1e6
    print(
        f"model        {recipe.model.name}: {millions:,.1f} million weights, {shape.layers} blocks of width "
        f"{shape.hidden} ({plan.shape_source})"
    )
    print(f"engines      {plan.engines}, on a GPU with Unsloth and vLLM")
    if plan.downloads:
        print(f"download     {', '.join(plan.downloads)}: hf download NAME, or at the first run")
    for note in plan.notes:
        print(f"note         {note}")
    if counts is not None:
        tokens = (counts.sampled + counts.imitated) * plan.completion_tokens / 1e6
        if counts.imitated:
            references = f"{counts.imitated:,} references of at most {tokens:,.1f} million tokens"
            worked_on = f"{references}; training samples nothing"
        else:
            worked_on = f"{counts.sampled:,} completions, at most {tokens:,.1f} million tokens sampled"
        print(f"run          {len(counts.prompts):,} prompts, {counts.order.total_steps:,} steps, {worked_on}")
    source = "the longest in the data" if counts else "data.max_prompt_tokens"
    print(
        f"longest row  {plan.prompt_tokens + plan.completion_tokens:,} tokens: "
        f"prompt {plan.prompt_tokens:,} ({source}), completion {plan.completion_tokens:,}"
    )


def _print_memory(plan: Plan) -> None:
    print(f"\n{'GPU memory, GiB':<36}{'sampling':>10}{'training':>10}")
    for part in plan.memory.parts:
        print(f"  {part.name:<34}{_gib(part.sampling):>10}{_gib(part.training):>10}")
    print(f"  {'together':<34}{_gib(plan.memory.sampling):>10}{_gib(plan.memory.training):>10}\n")


def _print_verdict(plan: Plan, recipe: Recipe, *, asked: bool) -> None:
    gpu, memory = plan.gpu / 2**30, plan.memory
    if plan.fits:
        where = f"fits {gpu:.4g} GiB" if asked else f"fits {gpu:.4g} GiB, the smallest GPU for it"
        sampled = ""
        if memory.sequences is not None:
            sampled = f", {memory.sequences} sampled at the same time; a larger group takes turns"
        print(f"{where}: {memory.rows} completions in a training forward{sampled}")
        _print_hours(plan)
    else:
        print(f"does not fit {gpu:.4g} GiB, even with one completion in a training forward")
        if memory.sequences == 0:
            print("  the engine's share holds no whole sequence: raise rollout.gpu_memory_utilization")
        if not recipe.model.load_in_4bit:
            print("  model.load_in_4bit: true would make the weights smaller")
    if plan.better_share is not None:
        print(f"rollout.gpu_memory_utilization={plan.better_share:g} would let all of a step be sampled at once")
    if plan.longest_completion:
        room = recipe.model.max_seq_length - plan.prompt_tokens
        bound = " (all that model.max_seq_length leaves)" if plan.longest_completion == room else ""
        print(f"longest completion that fits, one at a time in training: {plan.longest_completion:,} tokens{bound}")


def _print_hours(plan: Plan) -> None:
    for mean, hours in plan.hours:
        cards = hours.cards[0] if len(hours.cards) == 1 else f"{hours.cards[0]} to {hours.cards[-1]}"
        print(f"hours        an estimate: {hours} at a mean completion of {mean:,} tokens ({cards}; docs/memory.md)")


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}" if size else "-"
