"""`data.where`: which rows are trained on, by a column of numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gtpo_cli.data import load_problems
from gtpo_cli.data.problems import LoadedProblems
from gtpo_cli.errors import DataError, RecipeError
from gtpo_cli.recipe import build_recipe
from gtpo_cli.recipe.data import SourceRecipe

# As Big-Math writes a rate, DeepScaleR's relatives a text, and verl within another column.
RATES: list[Any] = [0.05, 0.1, "0.5", 0.8, 0.81, None, "n/a", float("nan"), True]


def load(path: Path, **changes: Any) -> LoadedProblems:
    data = SourceRecipe.model_validate({"path": str(path), **changes})
    return load_problems(data, seed=0, is_usable=lambda golds: [True] * len(golds))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rated.jsonl"
    rows = [{"question": f"{n}?", "answer": n, "rate": r, "extra": {"level": n}} for n, r in enumerate(RATES)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def golds(loaded: LoadedProblems) -> list[str]:
    return [problem.gold for problem in loaded.problems]


def test_rows_within_the_range_are_kept_and_both_ends_belong_to_it(table: Path) -> None:
    loaded = load(table, where={"rate": [0.1, 0.8]})
    assert golds(loaded) == ["1", "2", "3"]
    assert loaded.outside == 3  # 0.05, 0.81 and true, which is 1
    assert [row.reason for row in loaded.dropped] == [
        "no number in rate: None", "no number in rate: 'n/a'", "no number in rate: nan",
    ]  # fmt: skip
    assert "rate" not in loaded.unused
    assert "rate" in load(table).unused
    assert golds(load(table, where={"rate": [0.1, 0.8], "extra.level": [2, 9]})) == ["2", "3"]
    assert golds(load(table, where={"rate": [0.1, 0.8]}, limit=3)) == ["1", "2", "3"]  # a sample of these


def test_a_range_moves_no_question_to_the_other_side(table: Path) -> None:
    """The held-out share is that of the whole table, so another range cannot put a tested question into training."""
    held_out = load(table, held_out=0.4).held_out
    for where in ({"extra.level": [0, 8]}, {"extra.level": [0, 6]}):
        loaded = load(table, where=where, held_out=0.4)
        assert loaded.held_out == held_out
        assert not {problem.question for problem in loaded.problems} & held_out


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_other_files_have_ranges_too(tmp_path: Path, suffix: str) -> None:
    import pandas

    path = tmp_path / f"rated{suffix}"
    frame = pandas.DataFrame({"question": ["1?", "2?", "3?"], "answer": ["1", "2", "3"], "rate": [0.0, 0.5, 1.0]})
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    assert golds(load(path, where={"rate": [0.4, 0.6]})) == ["2"]


def test_what_cannot_be_selected_is_an_error(table: Path) -> None:
    with pytest.raises(
        DataError, match=r"no usable problem; .*; 6 rows outside data.where \(rate goes from 0.05 to 1\)$"
    ):
        load(table, where={"rate": [0.2, 0.3]})
    with pytest.raises(DataError, match="no column rat: found question, answer, rate, extra; did you mean rate"):
        load(table, where={"rat": [0, 1]})
    for data, said in (
        ({"benchmark": "gsm8k", "where": {"rate": [0, 1]}}, "data.where: is for benchmark: local and hub, not gsm8k"),
        ({"path": str(table), "where": {"rate": [0.8, 0.1]}}, r"expected \[lowest, highest\], not \[0.8, 0.1\]"),
        ({"benchmark": "mixture", "mixture": {"gsm8k": 1}, "where": {"rate": [0, 1]}}, "data.where: is for files"),
    ):
        with pytest.raises(RecipeError, match=said):
            build_recipe({"model": {"name": "builtin:tiny"}, "data": data}, where="recipe")


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_within_the_range_that_are_unusable_say_why(tmp_path: Path) -> None:
    """Otherwise a user widens the range, which helps nothing."""
    path = write(tmp_path / "a.jsonl", {"question": "1?", "rate": 0.5, "answer": ""}, {"question": "2?", "rate": 9})
    with pytest.raises(DataError, match=r"empty gold answer.*; 1 row outside data.where \(rate goes from 0.5 to 9\)$"):
        load(path, where={"rate": [0, 1]}, columns={"answer": "answer"})


def test_each_column_tells_its_own_range_in_full(tmp_path: Path) -> None:
    rows = ({"rate": 0.123456789012, "level": "none"}, {"rate": None, "level": 1234567891})
    path = write(tmp_path / "a.jsonl", *({"question": f"{n}?", "answer": n, **row} for n, row in enumerate(rows)))
    ranges = "rate goes from 0.123456789012 to 0.123456789012, level goes from 1234567891 to 1234567891"
    with pytest.raises(DataError, match=rf"2 rows outside data.where \({ranges}\)$"):
        load(path, where={"rate": [1, 2], "level": [1, 2]})


def test_a_column_that_is_there_twice_cannot_select(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("question,answer,rate,rate\n1?,1,0.1,0.9\n")
    with pytest.raises(DataError, match="two columns are called rate; rename one of them"):
        load(path, where={"rate": [0, 1]})


def test_a_number_is_written_as_people_write_it(tmp_path: Path) -> None:
    """Python's own separator in numbers is no number in a table."""
    rates = ["1_0", "10", " 10 ", "1e1"]
    path = write(tmp_path / "a.jsonl", *({"question": f"{n}?", "answer": n, "rate": r} for n, r in enumerate(rates)))
    loaded = load(path, where={"rate": [10, 10]})
    assert golds(loaded) == ["1", "2", "3"]
    assert [row.reason for row in loaded.dropped] == ["no number in rate: '1_0'"]
