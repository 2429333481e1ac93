"""Write the tables of docs/memory.md, the plan of the main recipes: `python scripts/write_memory_page.py [--check]`.

Longest prompts and steps were counted by `gtpo plan` on the training splits with the models' own tokenizers; the shapes
are the published ones. So the tables need no data, no hub and no GPU.
"""

from __future__ import annotations

import sys

from written_files import ROOT, below, parser, write

from gtpo_cli.models import Engines, choose_engines
from gtpo_cli.models.engines import LIBRARIES
from gtpo_cli.planning.cards import GIB, cards_of
from gtpo_cli.planning.duration import estimate
from gtpo_cli.planning.fit import fits
from gtpo_cli.planning.memory import Memory, memory_of
from gtpo_cli.planning.shapes import PUBLISHED, ModelShape
from gtpo_cli.recipe import Recipe, load_recipe

PAGE = ROOT / "docs" / "memory.md"
START = "<!-- the tables below are written by scripts/write_memory_page.py -->"
LONGEST_PROMPT = {"llama8b_gsm8k": 287, "llama8b_math": 1632, "qwen3b_gsm8k": 268, "qwen3b_math": 1710}
STEPS = {"gsm8k": 7473, "math": 7497}  # of one epoch, a prompt each
RECIPES = (*LONGEST_PROMPT, "llama8b_gsm8k_24gb", "qwen3b_gsm8k_16gb")
SIZES = (16, 24, 40, 80)


def tables() -> str:
    """A row for each recipe: parts of the training half at the recipe's own micro-batch, then what each size holds;
    and the hours."""
    names = ["weights", "adapter, gradients, optimiser", "engine asleep, adapter for it", "kept", "work"]
    sizes = [f"{size} GiB" for size in SIZES]
    memory = _table(["recipe", "longest row", *names, *sizes], [_memory_row(name) for name in RECIPES])
    hours = _table(["recipe", *sizes], [_hour_row(name) for name in RECIPES])
    return f"{memory}\n{HOURS}\n{hours}"


HOURS = """\
Hours of a run, **estimated** as said above, from the fastest to the slowest card of a size: at a mean completion of a
fifth of the limit / at the limit:
"""


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n"


def _recipe(name: str) -> tuple[Recipe, ModelShape, Engines, int]:
    """The recipe, its model's shape, the engines where all libraries are, and the longest prompt."""
    recipe = load_recipe(name)
    engines = choose_engines(recipe, gpu=True, installed=LIBRARIES)
    main = next(key for key in LONGEST_PROMPT if name.startswith(key))
    return recipe, PUBLISHED[recipe.model.name], engines, LONGEST_PROMPT[main]


def _memory(name: str, size: int, limit: int | None = None) -> Memory:
    recipe, shape, engines, prompt = _recipe(name)
    completion = recipe.rollout.max_completion_tokens
    return memory_of(
        recipe, shape, engines, prompt_tokens=prompt, completion_tokens=completion, gpu=size * GIB, limit=limit
    )


def _as_it_fits(name: str, size: int) -> Memory:
    memory = _memory(name, size)
    while not fits(memory, size * GIB) and memory.rows > 1:
        memory = _memory(name, size, memory.limit // 2)
    return memory


def _memory_row(name: str) -> list[str]:
    recipe, _, _, prompt = _recipe(name)
    parts = {part.name.split(",")[0]: part.training / GIB for part in _memory(name, 24).parts}
    shown = [
        parts["base weights"],
        parts["adapter"] + parts["gradients"] + parts["optimiser state"],
        parts["vLLM engine"] + parts["adapter handed to the engine"],
        parts["activations kept"],
        parts["work of one block or the logits"],
    ]
    cells = [f"`{name}`", f"{prompt + recipe.rollout.max_completion_tokens:,}", *(f"{value:.1f}" for value in shown)]
    for size in SIZES:
        memory = _as_it_fits(name, size)
        said = f"{memory.peak / GIB:.1f} ({memory.rows}, {memory.sequences})"
        cells.append(said if fits(memory, size * GIB) else f"no ({memory.peak / GIB:.1f}, {memory.sequences})")
    return cells


def _hour_row(name: str) -> list[str]:
    recipe, shape, engines, prompt = _recipe(name)
    steps = next(count for data, count in STEPS.items() if data in name)
    limit = recipe.rollout.max_completion_tokens
    cells = [f"`{name}`"]
    for size in SIZES:
        memory = _as_it_fits(name, size)
        hours = [
            estimate(
                recipe, shape, engines, memory, cards=cards_of(size * GIB), steps=steps,
                completions=steps * recipe.rollout.group_size, prompt_tokens=prompt, completion_tokens=mean,
            )
            for mean in (limit // 5, limit)
        ]  # fmt: skip
        cells.append(" / ".join(map(str, hours)) if fits(memory, size * GIB) else "")
    return cells


def main() -> int:
    check = parser(__doc__).parse_args().check
    return write({PAGE: below(START, PAGE, tables())}, check=check)


if __name__ == "__main__":
    sys.exit(main())
