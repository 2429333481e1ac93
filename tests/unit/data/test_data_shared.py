"""The real data sets, where they are beside the checkout. Figures are those of the data's own README."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from gtpo_cli.data import load_problems
from gtpo_cli.data.reading import last_boxed
from gtpo_cli.recipe.schema import DataRecipe


def all_usable(golds: Sequence[str]) -> list[bool]:
    return [True] * len(golds)


SIZES = [
    ("gsm8k", "train", 7473),
    ("gsm8k", "test", 1319),
    ("math", "train", 7500),
    ("math", "test", 5000),
    ("math500", "test", 500),
    ("aime24", "test", 30),
    ("aime25", "test", 30),
    ("amc23", "test", 40),
]


@pytest.mark.parametrize(("name", "split", "rows"), SIZES)
def test_every_row_is_a_problem_or_is_named(shared: Path, name: str, split: str, rows: int) -> None:
    data = DataRecipe.model_validate({"benchmark": name, "split": split, "path": str(shared / "data" / name)})
    loaded = load_problems(data, seed=0, is_usable=all_usable)
    empty_boxes = [5342, 5344] if (name, split) == ("math", "train") else []  # number_theory/7115 and 7117
    file = shared / "data" / name / f"{split}.jsonl"
    assert [(row.source, row.reason) for row in loaded.dropped] == [
        (f"{file}:{line}", "empty gold answer") for line in empty_boxes
    ]
    assert len(loaded.problems) == rows - len(empty_boxes)
    assert len({problem.id for problem in loaded.problems}) == len(loaded.problems)
    if name == "gsm8k":
        assert all(re.fullmatch(r"-?\d[\d,]*(\.\d+)?", problem.gold) for problem in loaded.problems)
        assert not any(mark in str(problem.solution) for problem in loaded.problems for mark in ("<<", ">>", "####"))
    if name in {"aime24", "aime25"}:
        assert all(0 <= int(problem.gold) <= 999 for problem in loaded.problems)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "split", "rows"),
    [
        ("gsm8k", "train", 7473),
        ("math500", "test", 500),
        ("aime24", "test", 30),
        ("aime25", "test", 30),
        ("amc23", "test", 40),
    ],
)
def test_the_rewards_can_use_every_gold_answer(shared: Path, name: str, split: str, rows: int) -> None:
    data = DataRecipe.model_validate({"benchmark": name, "split": split, "path": str(shared / "data" / name)})
    loaded = load_problems(data, seed=0)
    assert loaded.dropped == ()
    assert len(loaded.problems) == rows


def test_last_boxed_agrees_with_the_answer_column_of_all_of_math_but_for_the_joined_ones(shared: Path) -> None:
    """In 18 solutions two boxes give one answer, of which the column has the second part (one of them: 28 or 28_9)."""
    compared, joined = 0, 0
    for split in ("train", "test"):
        with (shared / "data" / "math" / f"{split}.jsonl").open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                gold, part = last_boxed(row["solution"]), row["answer"].strip()
                assert gold is not None
                assert gold == part or gold.endswith(f", {part}"), row["unique_id"]
                compared, joined = compared + 1, joined + (gold != part)
    assert (compared, joined) == (12_500, 18)
