"""Write the table of docs/memory.md, the plan of the main recipes: `python scripts/write_memory_page.py [--check]`.

Longest prompts were counted by `gtpo plan` on the training splits with the models' own tokenizers; the shapes are the
published ones. So the table needs no data, no hub and no GPU.
"""

from __future__ import annotations

import sys

from written_files import ROOT, below, parser, write

from gtpo_cli.models import choose_engines
from gtpo_cli.models.engines import LIBRARIES
from gtpo_cli.planning.memory import GIB, Memory, memory_of
from gtpo_cli.planning.plan import fits
from gtpo_cli.planning.shapes import PUBLISHED
from gtpo_cli.recipe import load_recipe

PAGE = ROOT / "docs" / "memory.md"
START = "<!-- the table below is written by scripts/write_memory_page.py -->"
LONGEST_PROMPT = {"llama8b_gsm8k": 287, "llama8b_math": 1632, "qwen3b_gsm8k": 268, "qwen3b_math": 1710}
RECIPES = (
    *(name for main in LONGEST_PROMPT for name in (main, f"{main}_g12")),
    "llama8b_gsm8k_24gb",
    "qwen3b_gsm8k_16gb",
)
SIZES = (16, 24, 40, 80)


def table() -> str:
    """A row for each recipe: parts of the training half at the recipe's own micro-batch, then what each size holds."""
    names = ["weights", "adapter, gradients, optimiser", "adapter in the engine", "kept", "work"]
    head = ["recipe", "longest row", *names, *(f"{size} GiB" for size in SIZES)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(_row(name))} |" for name in RECIPES]
    return "\n".join(lines) + "\n"


def _row(name: str) -> list[str]:
    recipe = load_recipe(name)
    shape = PUBLISHED[recipe.model.name]
    engines = choose_engines(recipe, gpu=True, installed=LIBRARIES)
    main = next(key for key in LONGEST_PROMPT if name.startswith(key))
    prompt, completion = LONGEST_PROMPT[main], recipe.rollout.max_completion_tokens

    def need(size: int, limit: int | None = None) -> Memory:
        return memory_of(
            recipe, shape, engines, prompt_tokens=prompt, completion_tokens=completion, gpu=size * GIB, limit=limit
        )

    parts = {part.name.split(",")[0]: part.training / GIB for part in need(24).parts}
    trained = parts["adapter"] + parts["gradients"] + parts["optimiser state"]
    shown = [
        parts["base weights"],
        trained,
        parts["adapter in the engine"],
        parts["activations kept"],
        parts["work of one block or the logits"],
    ]
    cells = [f"`{name}`", f"{prompt + completion:,}", *(f"{value:.1f}" for value in shown)]
    for size in SIZES:
        memory = need(size)
        while not fits(memory, size * GIB) and memory.rows > 1:
            memory = need(size, memory.limit // 2)
        if fits(memory, size * GIB):
            cells.append(f"{memory.peak / GIB:.1f} ({memory.rows} rows, {memory.sequences} sampled)")
        else:
            cells.append(f"no: {memory.peak / GIB:.1f}, {memory.sequences} sampled")
    return cells


def main() -> int:
    check = parser(__doc__).parse_args().check
    return write({PAGE: below(START, PAGE, table())}, check=check)


if __name__ == "__main__":
    sys.exit(main())
