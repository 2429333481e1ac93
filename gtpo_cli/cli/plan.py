"""gtpo plan"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from gtpo_cli.cli.options import (
    DEFAULT_RECIPE,
    GpuOption,
    JsonOption,
    RecipeOption,
    SetOption,
    as_typed,
    gpu_asked,
    gpu_here,
)
from gtpo_cli.cli.printing import print_json, suggest
from gtpo_cli.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from gtpo_cli.planning.fit import Plan

EXIT_DOES_NOT_FIT = 1


def plan(
    recipe: RecipeOption = None,
    gpu: GpuOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Steps, tokens, GPU memory by part, what fits, and an estimate of the hours. Loads no weights.

    gtpo plan --recipe llama8b_gsm8k --gpu 24GiB

    gtpo plan --recipe qwen3b_gsm8k --gpu 4090

    Exit code 1 when the recipe does not fit.
    """
    from gtpo_cli.planning.fit import make_plan

    name = recipe or DEFAULT_RECIPE
    loaded = load_recipe(name, set_ or [])
    size = gpu_asked(gpu) if gpu else gpu_here()
    made = make_plan(loaded, gpu=size)
    if as_json:
        print_json(_document(name, loaded, made))
    else:
        _print_run(made, loaded)
        _print_memory(made)
        _print_verdict(made, loaded, asked=size is not None)
    if not made.fits:
        raise typer.Exit(EXIT_DOES_NOT_FIT)
    if not as_json:
        suggest("train", "--recipe", name, *as_typed(set_))


def _document(name: str, recipe: Recipe, plan: Plan) -> dict[str, object]:
    counts = plan.counts
    return {
        "recipe": name,
        "model": recipe.model.name,
        "parameters": plan.shape.parameters,
        "engines": str(plan.engines),
        "downloads": plan.downloads,
        "notes": plan.notes,
        "prompts": len(counts.prompts) if counts else None,
        "steps": counts.order.total_steps if counts else None,
        "completions": counts.sampled if counts else None,
        "references": counts.imitated if counts else None,
        "longest_prompt": plan.prompt_tokens,
        "longest_completion": plan.completion_tokens,
        "gpu": plan.card.name if plan.card else None,
        "gpu_bytes": plan.gpu,
        "memory_bytes": {
            "parts": [asdict(part) for part in plan.memory.parts],
            "sampling": plan.memory.sampling,
            "training": plan.memory.training,
        },
        "fits": plan.fits,
        "completions_in_a_forward": plan.memory.rows,
        "sequences_at_once": plan.memory.sequences,
        "longest_completion_that_fits": plan.longest_completion,
        "better_gpu_memory_utilization": plan.better_share,
        "hours": [{"mean_completion": mean, **asdict(hours)} for mean, hours in plan.hours],
    }


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
    size = f"{gpu:.4g} GiB" + (f" ({plan.card.name})" if plan.card else "")
    if plan.fits:
        where = f"fits {size}" if asked else f"fits {size}, the smallest GPU for it"
        sampled = ""
        if memory.sequences is not None:
            sampled = f", {memory.sequences} sampled at the same time; a larger group takes turns"
        print(f"{where}: {memory.rows} completions in a training forward{sampled}")
        _print_hours(plan)
    else:
        print(f"does not fit {size}, even with one completion in a training forward")
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
