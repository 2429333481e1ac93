"""Guess a recipe's keys for data from its first rows: the columns and the kind of gold answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from gtpo_cli.data.benchmarks import open_source
from gtpo_cli.data.local import Row, Table
from gtpo_cli.data.reading import UnusableRowError, guessed_columns, last_boxed, own_gold, text_in, value_in
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import SourceRecipe
from gtpo_cli.rewards.extract import hashes
from gtpo_cli.rewards.same_answer import is_text

ROWS = 20
ENOUGH = 10  # rows, to hold out a tenth of them


def guessed_data(source: SourceRecipe) -> dict[str, Any]:
    """Guess `columns`, `gold`, and, without a test split, `held_out`: keys of the recipe's `data` section.

    Columns that the source names are kept; columns that cannot be guessed are left out. Raises DataError if the data
    cannot be read.
    """
    table, rows = _first_rows(source)
    columns = columns_of(source)
    named = source.columns.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    found = named if {"question", "answer"} <= named.keys() else guessed_columns(columns) | named
    answer = value_in(rows[0], found["answer"]) if rows and "answer" in found else None
    if isinstance(answer, Mapping) and "text" in answer and "answer" not in named:
        found |= {"answer": f"{found['answer']}.text"}  # SQuAD's
    guessed: dict[str, Any] = {"columns": found, "gold": _gold_kind(rows, found.get("answer", "answer"))}
    try:
        test_source = open_source(source.model_copy(update={"split": "test"}))[0].where
    except DataError:
        test_source = table.where
    return guessed | ({"held_out": 0.1} if test_source == table.where and len(rows) >= ENOUGH else {})


def columns_of(source: SourceRecipe) -> tuple[str, ...]:
    """Return the columns of the first rows. Raises DataError."""
    table, rows = _first_rows(source)
    return table.columns or tuple(dict.fromkeys(column for row in rows for column in row))


def _first_rows(source: SourceRecipe) -> tuple[Table, list[Row]]:
    """Raises DataError if no row can be read."""
    table, _ = open_source(source)
    read = list(islice(table.rows, ROWS))
    rows = [row for _, row in read if isinstance(row, Mapping)]
    if read and not rows:
        raise DataError(f"{read[0][0]}: {read[0][1]}")
    return table, rows


def golds_are_text(source: SourceRecipe) -> bool:
    """Return whether most gold answers of the first rows are words or codes, not mathematics. Raises DataError."""
    _, rows = _first_rows(source)
    read = own_gold(source.gold, answer=source.columns.answer, solution=None)
    golds = []
    for row in rows:
        with suppress(UnusableRowError):
            golds.append(read(row)[0])
    return 2 * sum(map(is_text, golds)) > len(golds)


def _gold_kind(rows: list[Row], column: str) -> str:
    """Return the kind of gold answer (`data.gold`) that most of these rows have in a column."""
    try:
        texts = [text for row in rows if (text := text_in(row, (column,), number=True)) is not None]
    except UnusableRowError:
        return "auto"
    counts = {
        "hashes": sum(bool(hashes(text.rpartition("\n")[2])) for text in texts),
        "boxed": sum(bool(last_boxed(text)) for text in texts),
    }
    most = max(counts, key=lambda kind: counts[kind])
    return most if 2 * counts[most] > len(texts) else "column"
