"""Write what is computed by the plan: `python scripts/docs/write_memory_page.py [--check]`. That is the tables of
docs/memory.md, the hours in docs/benchmarks.md, and what each recipe for a GPU says that it needs.

Longest prompts and problems were counted by `gtpo plan` on the training splits; the shapes are the published ones
(gtpo_cli/machine/shapes.py). So the tables need no data, no hub and no GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from written_files import ROOT, below, between, parser, write

from gtpo_cli.job import Engines
from gtpo_cli.machine.fit import SIZES as GPU_SIZES
from gtpo_cli.machine.fit import Hours, estimate
from gtpo_cli.machine.installed import CARDS, GIB, Card, cards_of, find_gpu
from gtpo_cli.machine.memory import Memory, best_memory, export_memory, fits, memory_of
from gtpo_cli.machine.open_keys import close, for_measuring, machine_with
from gtpo_cli.machine.shapes import PUBLISHED, PUBLISHED_PROMPTS, ModelShape
from gtpo_cli.policy.engines import LIBRARIES, choose_engines
from gtpo_cli.recipe import Recipe, load_recipe, shipped_recipes
from gtpo_cli.text import markdown_table

PAGE = ROOT / "docs" / "memory.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
MARKS = ("<!-- hours: written by scripts/docs/write_memory_page.py -->", "<!-- end of hours -->")
START = "<!-- the tables below are written by scripts/docs/write_memory_page.py -->"
PAPER = (
    "llama8b_gsm8k", "llama8b_math", "qwen3b_gsm8k", "qwen3b_math",
    "llama8b_gsm8k_24gb", "llama8b_gsm8k_80gb", "qwen3b_gsm8k_16gb",
)  # fmt: skip
RECIPES = (*PAPER, "qwen0.6b_gsm8k")
SIZES = (16, 24, 40, 80, 141)
SHOWN = ("4060ti", "3090", "4090", "l4", "5090", "a100-40gb", "l40s", "a100-80gb", "h100", "h200")
SETTINGS: dict[str, dict[str, Any]] = {"4 bits": {}, "16 bits": {"model.load_in_4bit": False}}


def tables() -> str:
    """A row for each recipe: parts of the training half at the recipe's own micro-batch, then what each size holds."""
    names = ["weights", "adapter, gradients, optimiser", "engine asleep, adapter for it", "kept", "work"]
    sizes = [f"{size} GiB" for size in SIZES]
    training = markdown_table(["recipe", "longest row", *names, *sizes], [_memory_row(name) for name in PAPER])
    head = ["recipe", *(f"`gtpo eval`, {size}" for size in sizes), "`gtpo export`", "main memory"]
    return f"{training}\n{markdown_table(head, [_measuring_row(name) for name in PAPER])}"


def _recipe(name: str, size: float | None = None) -> tuple[Recipe, ModelShape, Engines, int]:
    """The recipe, its model's shape, the engines where all libraries are, and the longest prompt; what the recipe
    leaves open as it is on a GPU of so many GiB."""
    recipe = load_recipe(name)
    engines = choose_engines(recipe, gpu=True, installed=LIBRARIES)
    shape = PUBLISHED[recipe.model.name]
    longest, _ = PUBLISHED_PROMPTS[recipe.model.name, recipe.data.benchmark]
    recipe = recipe if size is None else close(recipe, machine_with(size * GIB), shape).recipe
    return recipe, shape, engines, longest


def steps_of(recipe: Recipe) -> int:
    """The steps of the whole run."""
    _, problems = PUBLISHED_PROMPTS[recipe.model.name, recipe.data.benchmark]
    return recipe.training.max_steps or problems // recipe.rollout.prompts_per_step


def _memory(name: str, size: float, limit: int | None = None) -> Memory:
    """On a GPU of so many GiB."""
    recipe, shape, engines, prompt = _recipe(name, size)
    completion = recipe.rollout.max_completion_tokens
    return memory_of(
        recipe, shape, engines, prompt_tokens=prompt, completion_tokens=completion, gpu=size * GIB, limit=limit
    )


def _as_it_fits(name: str, size: float) -> Memory:
    memory = _memory(name, size)
    while not fits(memory, size * GIB) and memory.rows > 1:
        memory = _memory(name, size, memory.limit // 2)
    return memory


def _memory_row(name: str) -> list[str]:
    recipe, shape, engines, prompt = _recipe(name)
    completion = recipe.rollout.max_completion_tokens
    asleep = memory_of(recipe, shape, engines, prompt_tokens=prompt, completion_tokens=completion, gpu=24 * GIB)
    parts = {part.name.split(",")[0]: part.forward / GIB for part in asleep.parts}
    shown = [
        parts["base weights"],
        parts["adapter"] + parts["gradients"] + parts["optimiser state"],
        parts["vLLM engine"] + parts["adapter handed to the engine"],
        parts["activations kept"],
        parts["work of one block or the logits"],
    ]
    cells = [f"`{name}`", f"{prompt + completion:,}", *(f"{value:.1f}" for value in shown)]
    for size in SIZES:
        memory = _as_it_fits(name, size)
        held = fits(memory, size * GIB)
        assert not held or memory.rows == recipe.rollout.group_size, f"{PAGE.name} says that all go through at once"
        cells.append(f"{memory.peak / GIB:.1f} ({memory.sequences})" if held else "no")
    return cells


def _measuring_row(name: str) -> list[str]:
    """Of an evaluation: the share, the peak, the sequences sampled at once; of an export: what it takes."""
    cells = [f"`{name}`"]
    for size in SIZES:
        recipe, shape, engines, prompt = _recipe(name, size)
        measured = for_measuring(recipe, machine_with(size * GIB), shape, engines)
        need = partial(memory_of, measured, shape, engines, prompt_tokens=prompt, measures=True)
        memory = best_memory(need, recipe.evaluation.max_completion_tokens, size * GIB)
        share = measured.rollout.gpu_memory_utilization
        cells.append(f"{share}: {memory.peak / GIB:.1f} ({memory.sequences})" if memory else "no")
    recipe, shape, _, prompt = _recipe(name, SIZES[0])
    export = export_memory(recipe, shape, prompt_tokens=prompt)
    return [*cells, f"{export.answers / GIB:.1f}", f"{export.merge / GIB:.1f}"]


def hours_of(
    name: str, recipe: Recipe, memory: Memory, cards: Sequence[Card], engines: Engines, mean: int | None = None
) -> Hours:
    """Of a recipe that stems from `name`; by default with completions a fifth of the limit long."""
    _, shape, _, prompt = _recipe(name)
    steps, each = steps_of(recipe), recipe.rollout.prompts_per_step * recipe.rollout.group_size
    return estimate(
        recipe, shape, engines, memory, cards=cards, steps=steps, completions=steps * each, prompt_tokens=prompt,
        completion_tokens=mean or recipe.rollout.max_completion_tokens // 5,
    )  # fmt: skip


def with_best_share(name: str, values: dict[str, Any], card: Card, mean: int | None = None) -> Hours | None:
    """The recipe with these values on a card, with the engine's share as `auto` has it; None where it does not fit."""
    recipe, shape, engines, prompt = _recipe(name)
    tried = recipe.with_values(values | {"rollout.gpu_memory_utilization": "auto"})
    tried = close(tried, machine_with(card), shape).recipe
    need = partial(memory_of, tried, shape, engines, prompt_tokens=prompt)
    memory = best_memory(need, tried.rollout.max_completion_tokens, card.memory)
    return None if memory is None else hours_of(name, tried, memory, [card], engines, mean)


def card_table() -> str:
    """Hours of the paper's run on LLaMA-3.1-8B and GSM8K by card, base and steps a generation."""
    rows = []
    for card in (card for card in CARDS if card.short in SHOWN):
        row = [card.name if "GB" in card.name else f"{card.name} ({card.size} GB)"]
        for steps in (1, 8):
            for base in SETTINGS.values():
                values = base | {"rollout.steps_per_generation": steps}
                hours = [with_best_share("llama8b_gsm8k", values, card, mean) for mean in (300, 1500)]
                row.append(
                    " / ".join(str(of).removesuffix(" h").replace(" to ", "-") for of in hours) if all(hours) else "-"
                )
        if card.short == "h100":
            row[1] += " (measured: 57 at 1,500)"
        rows.append(row)
    head = [f"K {steps}, {base}" for steps in (1, 8) for base in SETTINGS]
    rows.sort(key=lambda row: -float(row[1].partition("-")[0]))
    return markdown_table(["estimated hours", *head], rows)


def needs(name: str) -> str:
    """What the second line of the recipe says: on the smallest GPU that will do, and on an H100."""
    size = next(size / GIB for size in GPU_SIZES if fits(_as_it_fits(name, size / GIB), size))
    recipe, _, engines, _ = _recipe(name, size)
    memory = _as_it_fits(name, size)
    hours = hours_of(name, recipe, memory, cards_of(size * GIB), engines)
    h100 = find_gpu("h100")
    assert isinstance(h100, Card)
    return f"{memory.peak / GIB:.1f} of {size:.0f} GiB GPU; {hours}; on an H100 {with_best_share(name, {}, h100)}."


def recipe_texts() -> dict[Path, str]:
    """The recipes with their second line as it should be."""
    texts = {}
    for name in RECIPES:
        about, _, rest = shipped_recipes()[name].read_text(encoding="utf-8").split("\n", 2)
        texts[ROOT / "recipes" / f"{name}.yaml"] = f"{about}\n# Needs {needs(name)}\n{rest}"
    return texts


def main() -> int:
    check = parser(__doc__).parse_args().check
    pages = {PAGE: below(START, PAGE, tables()), BENCHMARKS: between(*MARKS, BENCHMARKS, card_table())}
    return write(pages | recipe_texts(), check=check)


if __name__ == "__main__":
    sys.exit(main())
