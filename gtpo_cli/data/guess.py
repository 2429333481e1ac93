"""Guess a recipe's keys for data from its first rows: the columns and the kind of gold answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from gtpo_cli.data.benchmarks import open_source, own_spec
from gtpo_cli.data.local import Row, Table, is_message, with_class_names
from gtpo_cli.data.preparation import place_asked_for
from gtpo_cli.data.reading import (
    ROLES,
    UnusableRowError,
    guessed_columns,
    last_boxed,
    own_gold,
    read_table,
    text_in,
    value_in,
)
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
    found = named if {"question", "answer"} <= named.keys() else guessed_columns(columns) | _by_role(rows) | named
    for meaning in {"question", "answer"} & found.keys() - named.keys():
        if isinstance(found[meaning], str):
            found[meaning] = _inside(rows, found[meaning])
    guessed: dict[str, Any] = {"columns": found, "gold": _gold_kind(rows, found.get("answer", "answer"))}
    try:
        test_source = open_source(source.model_copy(update={"split": "test"}))[0].where
    except DataError:
        test_source = table.where
    return guessed | ({"held_out": 0.1} if test_source == table.where and len(rows) >= ENOUGH else {})


def _by_role(rows: list[Row]) -> dict[str, str]:
    """Return the columns of question and answer in rows whose columns are a user's message and an assistant's."""
    names = list(rows[0]) if rows and all(map(is_message, rows[0].values())) else []
    roles = [ROLES.get(str(rows[0][name].get("role", rows[0][name].get("from")))) for name in names]
    return dict(zip(("question", "answer"), names, strict=True)) if roles == ["user", "assistant"] else {}


def _inside(rows: list[Row], name: str) -> str:
    """Return where the text is in a column that holds objects, such as `answers.text`; else the column."""
    value = next((value for row in rows if (value := value_in(row, name)) is not None), None)
    keys = [key for key in ("ground_truth", "text", "content", "value") if isinstance(value, Mapping) and key in value]
    return _inside(rows, f"{name}.{keys[0]}") if keys else name


def place_asked(source: SourceRecipe) -> str | None:
    """Return where most questions of the first rows ask for the answer, as `rewards.answer` has it; None without such
    a place, and for tags, whose names the system prompt says. Raises DataError."""
    table, rows = _first_rows(source)
    first = Table(table.where, table.columns, [("", row) for row in rows])
    try:
        problems = read_table(first, own_spec(source), "", None, lambda golds: [True] * len(golds)).problems
    except DataError:  # no row can be used, which is said elsewhere
        return None
    place, _ = place_asked_for(problems) or (None, 0)
    return None if place == "tags" else place


def columns_of(source: SourceRecipe) -> tuple[str, ...]:
    """Return the columns of the first rows. Raises DataError."""
    table, rows = _first_rows(source)
    return table.columns or tuple(dict.fromkeys(column for row in rows for column in row))


def _first_rows(source: SourceRecipe) -> tuple[Table, list[Row]]:
    """Raises DataError if no row can be read."""
    table, _ = open_source(source)
    read = list(islice(table.rows, ROWS))
    rows = [with_class_names(row, table.classes) for _, row in read if isinstance(row, Mapping)]
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
