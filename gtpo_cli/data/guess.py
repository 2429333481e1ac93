"""What a recipe would say of data that nobody has described: columns and gold answers, by the first rows."""

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
ENOUGH = 10  # to hold a tenth of them out


def guessed_data(source: SourceRecipe) -> dict[str, Any]:
    """`columns`, `gold`, and `held_out` where there is no test split: keys of the recipe's `data`.

    Columns that the source names are kept, and such as cannot be guessed are left out. Raises DataError where the data
    cannot be read.
    """
    table, _ = open_source(source)
    rows = [row for _, row in islice(table.rows, ROWS) if isinstance(row, Mapping)]
    columns = table.columns or tuple(dict.fromkeys(column for row in rows for column in row))
    named = source.columns.model_dump(exclude_none=True) if "columns" in source.model_fields_set else None
    found = named or guessed_columns(columns)
    guessed: dict[str, Any] = {"columns": found, "gold": _way(rows, found.get("answer", "answer"))}
    try:
        tested = open_source(source.model_copy(update={"split": "test"}))[0].where
    except DataError:
        tested = table.where
    return guessed | ({"held_out": 0.1} if tested == table.where and len(rows) >= ENOUGH else {})


def _way(rows: list[Row], column: str) -> str:
    """How the gold answers stand in a column: as most of these rows have them."""
    try:
        texts = [text for row in rows if (text := text_in(row, (column,), number=True)) is not None]
    except UnusableRowError:
        return "auto"
    ways = {
        "hashes": sum(text.rpartition("\n")[2].lstrip().startswith("####") for text in texts),
        "boxed": sum(bool(last_boxed(text)) for text in texts),
    }
    most = max(ways, key=lambda way: ways[way])
    return most if 2 * ways[most] > len(texts) else "column"
