"""Turn the rows of a table into problems that can be scored, and list the dropped rows.

A row is dropped, counted and reported, never repaired, if it has no question, no gold answer, or a gold answer that the
rewards cannot compare.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from gtpo_cli.data.cells import UnusableRowError, has_column, text_in, turns_in
from gtpo_cli.data.columns import suggestion
from gtpo_cli.data.gold import GoldReader
from gtpo_cli.data.hub_sets import HubSource
from gtpo_cli.data.local import Row, SourcedRow, Table
from gtpo_cli.data.problems import DroppedRow, LoadedProblems, Side, UsableCheck, normalized_question, summarise_dropped
from gtpo_cli.errors import DataError
from gtpo_cli.text import shown
from gtpo_cli.types import Problem, Turn

# Gold answers are checked in chunks of this many rows. With a limit, none is checked after the limit is reached.
CHUNK_ROWS = 512


@dataclass(frozen=True, slots=True)
class BenchmarkSpec:
    """The definition of a benchmark.

    `columns` maps a meaning ("question", "answer", "solution") to column names, of which one must be there. The
    question is in the first column with text. `hub` is None for benchmarks that exist only as files.
    """

    columns: Mapping[str, tuple[str, ...]]
    read_gold: GoldReader
    hub: HubSource | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """One side of a table with split questions. A `share` of them, chosen by their texts, is the test side."""

    side: Side
    share: float


def read_table(
    table: Table,
    spec: BenchmarkSpec,
    id_prefix: str,
    limit: int | None,
    is_usable: UsableCheck,
    split: Split | None = None,
    with_columns: bool = False,
) -> LoadedProblems:
    """Turn the rows of a table into problems with ids "<id_prefix>/<row>" (rows counted from 1, bad ones included).

    With `split`, only the rows of that side are used; rows without a question are on the training side. With `limit`,
    the problems are a sample, in the order of the table. It depends on the questions' texts only, so a smaller limit
    takes some of the same. With `with_columns`, the problems keep their rows.
    """
    if table.columns is not None:
        if fault := _missing_column(spec, table.columns):
            raise DataError(f"{table.where}: {fault}; {_COLUMNS_REMEDY}")
        twice = [name for names in spec.columns.values() for name in names if table.columns.count(name) > 1]
        if twice:
            raise DataError(f"{table.where}: two columns are called {twice[0]}; rename one of them")
    usable: dict[int, Problem] = {}  # by the row's number
    left_out: dict[int, DroppedRow] = {}
    held_out = frozenset[str]()
    # A function of the user's own reads what it likes, and the built-in readers of gold these two columns.
    used = {"answer", "solution"}.union(*spec.columns.values())
    read_rows = table.rows if with_columns or "answer" not in spec.columns else table.rows_with(used)
    rows: Iterator[tuple[int, SourcedRow]] = enumerate(read_rows, start=1)
    if split is not None:
        rows, held_out = _rows_of_side(list(rows), spec, split, table.where)
    if limit is not None:  # a table may be sorted by kind
        rows = iter(sorted(rows, key=lambda row: _rank(_comparable_question(row[1][1], spec) or "", "limit")))
    while limit is None or len(usable) < limit:
        chunk = list(islice(rows, CHUNK_ROWS if limit is None else min(CHUNK_ROWS, limit - len(usable))))
        if not chunk:
            break
        read = [_read_row(source, row, spec, f"{id_prefix}/{number}") for number, (source, row) in chunk]
        verdicts = iter(is_usable([item.gold for item in read if isinstance(item, Problem)]))
        for item, (number, (_, row)) in zip(read, chunk, strict=True):
            if isinstance(item, DroppedRow):
                left_out[number] = item
            elif next(verdicts):
                if with_columns and not isinstance(row, str):
                    item = replace(item, columns=row)
                usable[number] = item
            else:
                left_out[number] = DroppedRow(item.source, f"unusable gold answer: {shown(item.gold)}")
    dropped = tuple(left_out[number] for number in sorted(left_out))
    if not usable:
        alike = len({row.reason for row in dropped}) == 1
        summary = summarise_dropped(dropped, shown=1 if alike else 3)
        why = f"{summary}; {_remedy(dropped)}" if dropped else "it has no rows"
        raise DataError(f"{table.where}: no usable problem; {why}")
    return LoadedProblems(tuple(usable[number] for number in sorted(usable)), dropped, held_out)


def _rows_of_side(
    rows: Sequence[tuple[int, SourcedRow]], spec: BenchmarkSpec, split: Split, where: str
) -> tuple[Iterator[tuple[int, SourcedRow]], frozenset[str]]:
    """Return the rows of one side, and the questions of the test side."""
    questions = [_comparable_question(row, spec) for _, (_, row) in rows]
    if not any(questions):
        return iter(rows), frozenset()  # reading says what is wrong with each
    kept = held_out_questions(filter(None, questions), split.share, where=where)
    pairs = zip(questions, rows, strict=True)
    return (row for question, row in pairs if (question in kept) == (split.side == "test")), kept


def held_out_questions(questions: Iterable[str], share: float, *, where: str) -> frozenset[str]:
    """Choose a share of the different questions, rounded to the nearest number: at least one and never all.

    The choice depends only on the texts, so no order and no repeated question can put one on both sides.
    Raises DataError for fewer than two questions.
    """
    ranked = sorted(set(questions), key=lambda question: (_rank(question, 0), question))
    if len(ranked) < 2:
        raise DataError(
            f"{where}: has fewer than two different questions, so none can be held out; name the column of the "
            "question (data.columns.question), or set data.held_out to 0"
        )
    return frozenset(ranked[: min(max(1, round(share * len(ranked))), len(ranked) - 1)])


def _rank(question: str, seed: int | str) -> bytes:
    return hashlib.blake2b(f"{seed}/{question}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _comparable_question(row: Row | str, spec: BenchmarkSpec) -> str | None:
    """Return the row's question as `normalized_question` writes it; None if it has none."""
    try:
        found = None if isinstance(row, str) else _read_question(row, spec.columns["question"])
    except UnusableRowError:
        return None
    return None if found is None else normalized_question(found[0])


def _read_row(source: str, row: Row | str, spec: BenchmarkSpec, problem_id: str) -> Problem | DroppedRow:
    if isinstance(row, str):
        return DroppedRow(source, row)
    try:
        if fault := _missing_column(spec, row):
            raise UnusableRowError(fault)
        found = _read_question(row, spec.columns["question"])
        if found is None:
            raise UnusableRowError("no question")
        question, turns, reply = found
        gold, solution = spec.read_gold(row)
    except UnusableRowError as error:
        return DroppedRow(source, str(error))
    if solution is None and reply != gold:
        solution = reply
    return Problem(problem_id, question, gold, solution, source, turns)


def _read_question(row: Row, columns: Sequence[str]) -> tuple[str, tuple[Turn, ...], str | None] | None:
    """Return the question, its chat if that has more than the question, and the assistant's reply in the chat.

    None if there is no question.
    """
    for name in columns:
        turns = turns_in(row, name)
        if not turns:
            continue
        reply = turns.pop()[1] if turns[-1][0] == "assistant" else None
        if not turns or turns[-1][0] != "user":
            raise UnusableRowError(f"no user message to answer in {name}")
        question = "\n\n".join(text for role, text in turns if role != "system")
        return question, tuple(turns) if len(turns) > 1 else (), reply
    text = text_in(row, columns)
    return None if text is None else (text, (), None)


def _missing_column(spec: BenchmarkSpec, columns: Iterable[str]) -> str | None:
    present = list(columns)
    found = {meaning: [n for n in names if has_column(present, n)] for meaning, names in spec.columns.items()}
    missing = {meaning: " or ".join(spec.columns[meaning]) for meaning, names in found.items() if not names}
    if not missing:
        return None
    known = {meaning: names[0] for meaning, names in found.items() if names}
    listed = ", ".join(_listed(name) for name in present[:20]) or "none"
    plural = "s" if len(missing) > 1 else ""
    return f"no column{plural} {' and '.join(missing.values())}: found {listed}{suggestion(missing, present, known)}"


def _listed(column: str) -> str:
    column = column if len(column) <= 40 else column[:37] + "..."
    return column if column.isprintable() else ascii(column)


_COLUMNS_REMEDY = "with benchmark: local or hub, set data.columns"
_REMEDIES = {
    "not JSON": "write one JSON object per line, as UTF-8",
    "no JSON object": "write one JSON object per line",
    "not UTF-8": "save the file as UTF-8",
    "not CSV": 'quote a field with " that holds a comma, a quote or a line break, and double the quotes in it',
    "wrong number of fields": "quote a field that holds a comma",
    "unusable gold answer": (
        "a gold answer is a number, an expression or a short text; for other text, set rewards.accuracy.equality: text"
    ),
}


def _remedy(dropped: Sequence[DroppedRow]) -> str:
    """Return the remedy for the most frequent fault of a file without a usable row."""
    kind = Counter(row.reason.partition(":")[0] for row in dropped).most_common(1)[0][0]
    return _REMEDIES.get(kind, _COLUMNS_REMEDY if kind.startswith("no column") else "correct the rows")
