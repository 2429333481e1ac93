"""Which problems an evaluation asks, and the prompts made of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gtpo_cli.data import Prompt, usable_prompts
from gtpo_cli.errors import DataError
from gtpo_cli.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`prompts`: the usable problems, encoded. `dropped`: how many could not be used; `notes` say why."""

    name: str
    split: str
    prompts: list[Prompt]
    dropped: int = 0
    notes: tuple[str, ...] = ()


def load_benchmark(
    recipe: Recipe,
    name: str,
    tokenizer: Any,
    *,
    max_seq_length: int,
    split: str = "test",
    data_path: Path | None = None,
) -> Benchmark:
    """The first `evaluation.limit` problems of a benchmark's split, with the recipe's system prompt.

    Problems whose prompt is longer than `data.max_prompt_tokens`, or leaves no room within `max_seq_length`, are
    dropped and counted.

    `data_path`: a file, or a folder with one file a split, or a folder with one such folder a benchmark. Without it
    the recipe's own `data.path` where it is the recipe's benchmark and a folder, else the hub.
    Raises DataError.
    """
    data = recipe.data.model_copy(
        update={
            "benchmark": name,
            "split": split,
            "path": _path(recipe, name, split, data_path),
            "limit": recipe.evaluation.limit,
        }
    )
    prompts, dropped, notes = usable_prompts(
        data, recipe.rewards, tokenizer, max_seq_length=max_seq_length, seed=recipe.seed
    )
    return Benchmark(name, split, prompts, dropped, tuple(notes))


def _path(recipe: Recipe, name: str, split: str, data_path: Path | None) -> str | None:
    if data_path is not None:
        folder = data_path.expanduser() / name
        return str(folder if folder.is_dir() else data_path)
    if name != recipe.data.benchmark or recipe.data.path is None:
        if name == "local":
            raise DataError(
                "benchmark local: name the file, or the folder with a file a split: gtpo eval --data-path PATH"
            )
        return None
    if not Path(recipe.data.path).expanduser().is_dir() and split != recipe.data.split:
        raise DataError(
            f"data.path: {recipe.data.path} is the one file that was trained on, so it holds nothing to test on; name "
            "another with gtpo eval --data-path, or give data.path a folder with a file a split (train.jsonl, "
            "test.jsonl)"
        )
    return recipe.data.path
