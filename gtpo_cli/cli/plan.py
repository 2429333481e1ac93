"""gtpo plan"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gtpo_cli.cli.options import (
    DEFAULT_RECIPE,
    GpuOption,
    JsonOption,
    RecipeOption,
    SetOption,
    as_typed,
    parse_gpu,
)
from gtpo_cli.cli.printing import print_json, say, suggest
from gtpo_cli.errors import program
from gtpo_cli.recipe import load_recipe
from gtpo_cli.text import counted

if TYPE_CHECKING:
    from gtpo_cli.machine.fit import Copy, Plan
    from gtpo_cli.machine.memory import Memory
    from gtpo_cli.recipe.schema import ModelRecipe

EXIT_DOES_NOT_FIT = 1


def plan(
    recipe: RecipeOption = None,
    gpu: GpuOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate steps, tokens, GPU memory by part, what fits, and the hours. Loads no weights.

    gtpo plan --recipe llama8b_gsm8k --gpu 24GiB

    gtpo plan --recipe qwen3b_gsm8k --gpu 4090

    The exit code is 1 if the recipe does not fit.
    """
    name = recipe or DEFAULT_RECIPE
    loaded = load_recipe(name, set_ or [])
    if not as_json:  # importing torch and transformers takes seconds
        say(f"planning {name}: reading the configuration and tokenizer of {loaded.model.name}, and the data")
    from gtpo_cli.machine.fit import make_plan
    from gtpo_cli.machine.open_keys import gpu_memory

    size = parse_gpu(gpu) if gpu else gpu_memory()
    made = make_plan(loaded, gpu=size)
    if as_json:
        print_json(_document(name, made))
    else:
        _print_run(made)
        for mean, need in made.cpu:
            print(f"on a CPU     an estimate: {need} at a mean completion of {mean:,} tokens (one thread, float32)")
        _print_memory(made)
        _print_verdict(made, gpu_given=size is not None)
    if not made.fits:
        raise typer.Exit(EXIT_DOES_NOT_FIT)
    if not as_json:
        suggest("train", "--recipe", name, *as_typed(set_))


def _document(name: str, plan: Plan) -> dict[str, object]:
    counts = plan.counts
    return {
        "recipe": name,
        "model": plan.recipe.model.name,
        "parameters": plan.shape.parameters,
        "engines": str(plan.engines),
        "decided": plan.decided,
        "downloads": plan.downloads,
        "smaller_download": plan.smaller,
        "notes": plan.notes,
        "prompts": len(counts.prompts) if counts else None,
        "steps": counts.order.total_steps if counts else None,
        "completions": counts.sampled if counts else None,
        "references": counts.imitated if counts else None,
        "longest_prompt": plan.prompt_tokens,
        "longest_completion": plan.completion_tokens,
        "gpu": plan.card.name if plan.card else None,
        "gpu_bytes": plan.gpu,
        "memory": {
            "training": _memory_document(plan.memory),
            "eval": _memory_document(plan.evaluation),
            "probe_entropy": _memory_document(plan.probe),
            "export": plan.export,
        },
        "fits": plan.fits,
        "longest_completion_that_fits": plan.longest_completion,
        "better_gpu_memory_utilization": plan.better_share,
        "hours": [{"mean_completion": mean, **hours._asdict()} for mean, hours in plan.hours],
        "cpu": [{"mean_completion": mean, "ram_bytes": need.ram, "minutes": need.minutes} for mean, need in plan.cpu],
        "saving": {"set": plan.saving.values, "hours": plan.saving.hours._asdict()} if plan.saving else None,
    }


def _memory_document(memory: Memory) -> dict[str, object]:
    return {
        "parts": memory.parts,
        "sampling": memory.sampling,
        "forward": memory.forward,
        "completions_in_a_forward": memory.rows,
        "sequences_at_once": memory.sequences,
    }


def _print_run(plan: Plan) -> None:
    shape, counts = plan.shape, plan.counts
    millions = shape.parameters / 1e6
    print(
        f"model        {plan.recipe.model.name}: {millions:,.1f} million weights, {shape.layers} blocks of width "
        f"{shape.hidden} ({plan.shape_source})"
    )
    plain = {plan.engines.backend, plan.engines.engine} == {"transformers"}
    installed = "" if plain else ", on a GPU with Unsloth and vLLM"
    print(f"engines      {plan.engines}{installed}")
    if plan.downloads:
        print(f"download     {', '.join(plan.downloads)}: {program('hf')} download NAME, or at the first run")
    if plan.smaller:
        _print_smaller(plan.smaller, plan.recipe.model)
    for note in plan.notes:
        print(f"note         {note}")
    if counts is not None:
        tokens = (counts.sampled + counts.imitated) * plan.completion_tokens / 1e6
        if counts.imitated:
            references = f"{counted(counts.imitated, 'reference', ',')} of at most {tokens:,.1f} million tokens"
            amount = f"{references}; training samples nothing"
        else:
            amount = f"{counted(counts.sampled, 'completion', ',')}, at most {tokens:,.1f} million tokens sampled"
        prompts, steps = counted(len(counts.prompts), "prompt", ","), counted(counts.order.total_steps, "step", ",")
        print(f"run          {prompts}, {steps}, {amount}")
    source = "the longest in the data" if counts else "data.max_prompt_tokens"
    print(
        f"longest row  {plan.prompt_tokens + plan.completion_tokens:,} tokens: "
        f"prompt {plan.prompt_tokens:,} ({source}), completion {plan.completion_tokens:,}"
    )


def _print_smaller(copy: Copy, model: ModelRecipe) -> None:
    """Print another repository with the same weights, and how it differs."""
    size, saved = copy.size / 2**30, (copy.instead_of - copy.size) / 2**30
    owner = model.name.partition("/")[0]
    print(f"or           --set model.name={copy.name}")
    print(
        f"             {size:.1f} GiB of 4-bit weights: {saved:.1f} GiB less to fetch and to store. The same NF4 "
        "weights up to rounding: Unsloth quantised them from 16 bits with double quantisation, as loading does here. "
        f"But the weights, the tokenizer and its template come from Unsloth, which you trust instead of {owner}; and a "
        "merged export needs --base for weights without that rounding."
    )


def _print_memory(plan: Plan) -> None:
    print(f"\n{'GPU memory, GiB':<36}{'sampling':>10}{'training':>10}")
    for part in plan.memory.parts:
        print(f"  {part.name:<34}{_gib(part.sampling):>10}{_gib(part.forward):>10}")
    print(f"  {'together':<34}{_gib(plan.memory.sampling):>10}{_gib(plan.memory.forward):>10}\n")


def _print_verdict(plan: Plan, *, gpu_given: bool) -> None:
    gpu, memory = plan.gpu / 2**30, plan.memory
    size = f"{gpu:.4g} GiB" + (f" ({plan.card.name})" if plan.card else "")
    if plan.fits:
        where = f"fits {size}" if gpu_given else f"fits {size}, the smallest GPU for it"
        sampled = ""
        if memory.sequences is not None:
            sampled = f", {memory.sequences} sampled at the same time; a larger group takes turns"
        print(f"{where}: {counted(memory.rows, 'completion')} in a training forward{sampled}")
        _print_hours(plan)
    else:
        print(f"does not fit {size}, even with one completion in a training forward")
        if memory.sequences == 0:
            print("  the engine's share holds no whole sequence: raise rollout.gpu_memory_utilization")
        if not plan.recipe.model.load_in_4bit:
            print("  model.load_in_4bit: true would make the weights smaller")
    for command, measuring in (("eval", plan.evaluation), ("probe-entropy", plan.probe)):
        print(f"gtpo {command:<13}  {_measuring(measuring, plan.gpu)}")
    export = plan.export
    print(
        f"gtpo export         {_gib(export.answers)} GiB; merging takes {_gib(export.merge)} GiB of main memory; the "
        f"check of the result takes {_gib(export.check)} GiB, of main memory if the GPU has no room"
    )
    if plan.better_share is not None:
        print(f"rollout.gpu_memory_utilization={plan.better_share:g} would let all of a step be sampled at once")
    if plan.longest_completion:
        room = plan.recipe.model.max_seq_length - plan.prompt_tokens
        bound = " (all that model.max_seq_length leaves)" if plan.longest_completion == room else ""
        print(f"longest completion that fits, one at a time in training: {plan.longest_completion:,} tokens{bound}")


def _measuring(memory: Memory, gpu: float) -> str:
    from gtpo_cli.machine.memory import fits

    if not fits(memory, gpu):
        return f"does not fit: {_gib(memory.peak)} GiB with one completion in a forward"
    return (
        f"{_gib(memory.peak)} GiB: {counted(memory.rows, 'completion')} in a forward that measures entropies, "
        f"{memory.sequences} sampled at the same time"
    )


def _print_hours(plan: Plan) -> None:
    for mean, hours in plan.hours:
        print(f"time         an estimate: {hours} at a mean completion of {mean:,} tokens (docs/memory.md)")
    if (saving := plan.saving) is not None:
        print(f"would save   most: {saving} would take {saving.hours} instead of {plan.hours[0][1]}")


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}" if size else "-"
