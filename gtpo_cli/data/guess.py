"""Guess a recipe's keys for data from its first rows: the columns and the kind of gold answers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from gtpo_cli.data.benchmarks import open_source
from gtpo_cli.data.cells import UnusableRowError, text_in
from gtpo_cli.data.columns import guessed_columns
from gtpo_cli.data.gold import last_boxed
from gtpo_cli.data.local import Row
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import SourceRecipe

ROWS = 20
ENOUGH = 10  # rows, to hold out a tenth of them


def guessed_data(source: SourceRecipe) -> dict[str, Any]:
    """Guess `columns`, `gold`, and, without a test split, `held_out`: keys of the recipe's `data` section.

    Columns that the source names are kept; columns that cannot be guessed are left out. Raises DataError if the data
    cannot be read.
    """
    table, _ = open_source(source)
    rows = [row for _, row in islice(table.rows, ROWS) if isinstance(row, Mapping)]
    columns = table.columns or tuple(dict.fromkeys(column for row in rows for column in row))
    named = source.columns.model_dump(exclude_none=True) if "columns" in source.model_fields_set else None
    found = named or guessed_columns(columns)
    guessed: dict[str, Any] = {"columns": found, "gold": _gold_kind(rows, found.get("answer", "answer"))}
    try:
        test_source = open_source(source.model_copy(update={"split": "test"}))[0].where
    except DataError:
        test_source = table.where
    return guessed | ({"held_out": 0.1} if test_source == table.where and len(rows) >= ENOUGH else {})


def _gold_kind(rows: list[Row], column: str) -> str:
    """Return the kind of gold answer (`data.gold`) that most of these rows have in a column."""
    try:
        texts = [text for row in rows if (text := text_in(row, (column,), number=True)) is not None]
    except UnusableRowError:
        return "auto"
    counts = {
        "hashes": sum(text.rpartition("\n")[2].lstrip().startswith("####") for text in texts),
        "boxed": sum(bool(last_boxed(text)) for text in texts),
    }
    most = max(counts, key=lambda kind: counts[kind])
    return most if 2 * counts[most] > len(texts) else "column"
