"""The problems of a recipe as the Parquet file that verl's dataset reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gtpo_cli.data import PromptEncoder, encode_prompts, load_problems, summarise_dropped
from gtpo_cli.data.prompts import TEMPLATE_DATE
from gtpo_cli.errors import DataError, ModelError
from gtpo_cli.recipe import Recipe
from gtpo_cli.types import Problem


def write_dataset(
    recipe: Recipe, tokenizer: Any, path: Path, *, max_prompt_tokens: int, say: Callable[[str], None]
) -> int:
    """Write the recipe's problems; `say` is told what was dropped. Returns how many problems the file holds.

    verl renders prompts itself, from messages. Each is rendered here both ways, and the tokens must be the same.
    Raises DataError, ModelError (no chat template, or verl would give the model another prompt).
    """
    import pyarrow
    from pyarrow import parquet

    loaded = load_problems(recipe.data, seed=recipe.seed)
    if warning := loaded.warning():
        say(warning)
    encoder = PromptEncoder(tokenizer, recipe.data.system_prompt)
    if encoder.uses_plain_format:
        raise ModelError(
            f"model.name: the tokenizer of {recipe.model.name} has no chat template, and verl prompts through one; "
            "use an instruct model, or give the tokenizer a chat_template"
        )
    prompts, too_long = encode_prompts(loaded.problems, encoder, max_prompt_tokens=max_prompt_tokens)
    if too_long:
        say(summarise_dropped(too_long))
    for problem, ids in prompts:
        _check_same_tokens(tokenizer, encoder, problem, ids)
    rows = [_row(recipe, problem, encoder, index) for index, (problem, _) in enumerate(prompts)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error}); choose another --out") from error
    return len(rows)


def _row(recipe: Recipe, problem: Problem, encoder: PromptEncoder, index: int) -> dict[str, Any]:
    return {
        "data_source": recipe.data.benchmark,
        "prompt": encoder.messages(problem.question),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.gold},
        "extra_info": {
            "index": index,
            "split": recipe.data.split,
            "id": problem.id,
            "question": problem.question,
            "solution": problem.solution or "",
            "source": problem.source,
        },
    }


def _check_same_tokens(tokenizer: Any, encoder: PromptEncoder, problem: Problem, ids: tuple[int, ...]) -> None:
    rendered = tokenizer.apply_chat_template(
        encoder.messages(problem.question),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        date_string=TEMPLATE_DATE,
    )
    if tuple(rendered) != ids:
        raise ModelError(
            f"{problem.source or problem.id}: verl would give the model {len(rendered)} prompt tokens where gtpo gives "
            f"{len(ids)}; the tokenizer adds special tokens to what its chat template has written: use another one"
        )
