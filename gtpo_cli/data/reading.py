"""Turn the rows of a table into problems that can be scored, and list the dropped rows.

A row is dropped, counted and reported, never repaired, if it has no question, no gold answer, or a gold answer that the
rewards cannot compare.

A column of a row holds text, a number or chat messages.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from gtpo_cli.data.local import MAX_LINE_BYTES, Row, SourcedRow, Table, is_message, with_class_names
from gtpo_cli.data.problems import DroppedRow, LoadedProblems, Side, UsableCheck, normalized_question, summarise_dropped
from gtpo_cli.errors import DataError
from gtpo_cli.rewards.equality import answers_equal
from gtpo_cli.rewards.extract import ANSWER_TAGS, bare_box, boxes, hashes
from gtpo_cli.rewards.normalize import seen
from gtpo_cli.runs.user_code import import_function, running
from gtpo_cli.text import counted, nearest_of, shown, some
from gtpo_cli.types import CodeName, Problem, Turn

if TYPE_CHECKING:
    from gtpo_cli.data.benchmarks import BenchmarkSpec


GoldReader = Callable[[Row], tuple[str, str | None]]  # gold answer, worked solution or None; raises UnusableRowError
Key = Callable[[str, Mapping[str, str]], list[str]]  # a gold answer, and the choices by letter -> letters


def boxed_gold(row: Row) -> tuple[str, str | None]:
    """Gold: the last box of the solution, or the answer column if there is no box or an empty one. Solution: the whole
    solution."""
    solution = text_in(row, ("solution",))
    box = last_boxed(solution) if solution else None
    gold = (box or "").strip() or text_in(row, ("answer",), number=True)
    if gold is None:
        if solution is None:
            raise UnusableRowError("no solution and no answer")
        raise UnusableRowError("no \\boxed{} in solution" if box is None else "empty gold answer")
    return gold, solution


def own_gold(gold: str, *, answer: str = "answer", solution: str | None) -> GoldReader:
    """Return the reader that `data.gold` names. Solution: its column, or else the text that contains the gold answer.

    Raises DataError for a missing function.
    """
    if isinstance(gold, CodeName):
        return _function_gold(gold, solution)
    read = _READERS[gold]

    def read_row(row: Row) -> tuple[str, str | None]:
        text = text_in(row, (answer,), number=True)
        if text is None:
            raise UnusableRowError("empty gold answer")
        answered = _THOUGHTS.sub("", text)
        value, worked = read(answered, answer)
        if worked is not None and answered != text:
            _, worked = read(text, answer)
        return value, worked if solution is None else text_in(row, (solution,))

    return read_row


def _function_gold(name: CodeName, solution: str | None) -> GoldReader:
    function = import_function(name, lambda why: DataError(f"data.gold: {name}: {why}"))

    def read_row(row: Row) -> tuple[str, str | None]:
        remedy = "return None for a row to leave out"
        with running(lambda said: DataError(f"data.gold: {name} raised {said}; {remedy}")):
            value = function(dict(row))
        gold = text_in({"gold answer": value}, ("gold answer",), number=True)
        if gold is None:
            raise UnusableRowError("empty gold answer")
        return gold, None if solution is None else text_in(row, (solution,))

    return read_row


def _hashes(text: str, column: str) -> tuple[str, str | None]:
    """Gold: the text after the last `####`. Solution: the text before it, without calculator marks (<<48/2=24>>)."""
    worked, mark, gold = text.rpartition("####")
    if not mark:
        raise UnusableRowError(f"no #### in {column}")
    if not gold.strip():
        raise UnusableRowError("empty gold answer")
    return gold.strip(), re.sub(r"<<[^<>]*>>", "", worked).strip() or None


def _boxed(text: str, column: str) -> tuple[str, str | None]:
    box = last_boxed(text)
    if not (box or "").strip():
        raise UnusableRowError(f"no \\boxed{{}} in {column}" if box is None else "empty gold answer")
    assert box is not None
    return box.strip(), text


def _column(text: str, column: str) -> tuple[str, str | None]:
    return text, None


def _auto(text: str, column: str) -> tuple[str, str | None]:
    if hashes(text.rpartition("\n")[2]):
        return _hashes(text, column)
    return _boxed(text, column) if (last_boxed(text) or "").strip() else (text, None)


_READERS: dict[str, Callable[[str, str], tuple[str, str | None]]] = {
    "auto": _auto, "column": _column, "hashes": _hashes, "boxed": _boxed,
}  # fmt: skip


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{...}`, or else the word after the last `\boxed` without braces.
    None if there is neither; "" for an empty box. Joined boxes are one answer, unless they give the same one twice."""
    if not (found := boxes(text)):
        return bare_box(text)
    *others, last = found[-1].parts or (found[-1].answer,)
    return last if any(answers_equal(last, other) for other in others) else found[-1].answer


def _cleaned(gold: str, tag: str | None) -> str:
    """Return a gold answer without an answer's tags around it, and without what no comparison sees."""
    if tagged := _TAGGED.fullmatch(gold):
        name, inner = tagged.groups()
        gold = inner if name == tag or name.lower().replace("-", "_") in ANSWER_TAGS else gold
    gold = seen(gold).strip()
    if not gold:
        raise UnusableRowError("empty gold answer")
    if _TESTS.match(gold):
        raise UnusableRowError(f"tests of a program as gold answer: {shown(gold)}")
    return gold


_TESTS = re.compile(r'[\s\[]*\{\s*"(?:inputs|outputs|functional|fn_name|testtype|assert_case)"\s*:')
_THOUGHTS = re.compile(r"(?s)\A\s*<(think|thinking|thought|reasoning)>.*</\1>\s*")
_TAGGED = re.compile(r"<([A-Za-z][\w.-]*)>(.*)</\1>", re.DOTALL)


# Role names of OpenAI, the hub and ShareGPT.
ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "model": "assistant",
}  # fmt: skip


class UnusableRowError(ValueError):
    """The row gives no problem. The message becomes the reason of the `DroppedRow`."""


def has_column(columns: Sequence[str], name: str) -> bool:
    """Whether there is a column of this name; for `a.b`, a column `a` that may hold a `b` suffices."""
    return name in columns or ("." in name and name.partition(".")[0] in columns)


def text_in(row: Row, names: Sequence[str], *, number: bool = False) -> str | None:
    """Return the stripped text of the first of these columns that has one; None if all are absent or empty.

    In chat messages, the text is the assistant's reply at their end. With `number`, a finite number counts as text
    (27.0 as "27"). Raises UnusableRowError for any other value, a text that is far too long, a NUL character, and a
    lone surrogate, which stands for bytes that are not UTF-8 in JSON and CSV.
    """
    for name in names:
        value = value_in(row, name)
        if number:
            value = _alone(value)
        if _is_chat(value):
            (*_, (role, last)) = turns_in(row, name)
            value = last if role == "assistant" else None
        elif number and isinstance(value, float) and math.isfinite(value):
            value = repr(int(value) if value.is_integer() else value)
        elif number and isinstance(value, int | Decimal) and not isinstance(value, bool):
            value = format(value, "f") if isinstance(value, Decimal) else str(value)
        if stripped := _text(name, value):
            return stripped
    return None


def _alone(value: Any) -> Any:
    """Return the one element of a list of one text or number, also if the list of a text is written as text."""
    if isinstance(value, str) and re.fullmatch(r"\s*\[\s*([\"']).*\1\s*\]\s*", value):
        written = _written(value)
        return written[0] if isinstance(written, list) and len(written) == 1 else value
    alone = isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, int, float))
    return value[0] if alone else value


def turns_in(row: Row, name: str) -> list[Turn]:
    """Return the chat messages in a column without blank ones; an empty list if it holds something else.

    Raises UnusableRowError for an unknown role, a message without text, or only blank messages.
    """
    value = value_in(row, name)
    turns: list[Turn] = []
    for message in value if _is_chat(value) else ():
        role = message.get("role", message.get("from"))
        if role not in ROLES:
            raise UnusableRowError(f"a message in {name} has an unknown role: {shown(role)}")
        content = message.get("content", message.get("value"))
        if isinstance(content, list):
            content = "".join(_part(name, part) for part in content)
        if text := _text(name, content):
            turns.append((ROLES[role], text))
    if _is_chat(value) and not turns:
        raise UnusableRowError(f"only blank messages in {name}")
    return turns


def value_in(row: Row, name: str) -> Any:
    """Return the value of a column; for `a.b` where there is no such column, that of `b` within `a`. None if absent."""
    if name in row or "." not in name:
        return _chat_in(row.get(name))
    outer, _, inner = name.partition(".")
    within = row.get(outer)
    return value_in(within, inner) if isinstance(within, Mapping) else None


def _chat_in(value: Any) -> Any:
    """Return the messages of a chat that is stored as text, in JSON or as Python prints it; else the value itself."""
    if not isinstance(value, str) or not re.match(r"\s*\[\s*\{\s*[\"'](?:role|content|from|value)[\"']", value):
        return value
    chat = _written(value)
    return chat if _is_chat(chat) else value


def _written(text: str) -> Any:
    """Return the value that a text writes, in JSON or as Python prints it; None if it writes none."""
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return read(text.strip())
    return None


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def _part(name: str, part: Any) -> str:
    """Return the text of one part of a message, as multimodal models split messages."""
    if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
        raise UnusableRowError(f"a message in {name} is not text: {shown(part)}")
    return str(part["text"])


def _text(name: str, value: Any) -> str | None:
    """Check and strip a text; None if it is empty or absent."""
    if value is None:
        return None
    if isinstance(value, Mapping) and value:
        keys = [str(key) for key in value]
        raise UnusableRowError(f"{name} is not text: it holds {some(keys)}; name one of them, as {name}.{keys[0]}")
    if not isinstance(value, str):
        raise UnusableRowError(f"{name} is not text: {type(value).__name__} {shown(value)}")
    if len(value) > MAX_LINE_BYTES:  # Parquet and the hub have no limit on lines
        raise UnusableRowError(f"{name} too long: more than {MAX_LINE_BYTES // 2**20} MiB")
    if "\0" in value:
        raise UnusableRowError(f"NUL character in {name}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise UnusableRowError(f"not UTF-8: {name}")
    return value.strip() or None


# Gold answers are checked in chunks of this many rows. With a limit, none is checked after the limit is reached.
CHUNK_ROWS = 512


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
        used_names = [*spec.where, *(name for names in spec.columns.values() for name in names)]
        twice = [name for name in used_names if table.columns.count(name) > 1]
        if twice:
            raise DataError(f"{table.where}: two columns are called {twice[0]}; rename one of them")
    first: list[str] = []  # columns of the first row, where each row names its own
    usable: dict[int, Problem] = {}  # by the row's number
    left_out: dict[int, DroppedRow] = {}
    held_out = frozenset[str]()
    # A function of the user's own reads what it likes, and the built-in readers of gold these two columns.
    used = {"answer", "solution", *spec.where}.union(*spec.columns.values())
    read_rows = table.rows if with_columns or "answer" not in spec.columns else table.rows_with(used)
    rows: Iterator[tuple[int, SourcedRow]] = enumerate(read_rows, start=1)
    meant = {name for names in spec.columns.values() for name in names}
    classes = {name: names for name, names in table.classes.items() if name in meant}

    def named(row: Row | str) -> Row | str:
        return row if isinstance(row, str) else with_class_names(row, classes)

    key = _KEYS[0]
    if "choices" in spec.columns:
        ahead = list(islice(rows, CHUNK_ROWS))
        key = _key_of([named(row) for _, (_, row) in ahead], spec)
        rows = chain(ahead, rows)
    if split is not None:
        rows, held_out = _rows_of_side(list(rows), spec, split, table.where)
    chosen = _Chosen(spec.where)
    rows = filter(chosen.admits, rows)
    if limit is not None:  # a table may be sorted by kind
        rows = iter(sorted(rows, key=lambda row: _rank(_comparable_question(row[1][1], spec) or "", "limit")))
    while limit is None or len(usable) < limit:
        chunk = list(islice(rows, CHUNK_ROWS if limit is None else min(CHUNK_ROWS, limit - len(usable))))
        if not chunk:
            break
        first = first or [name for _, (_, row) in chunk[:1] if not isinstance(row, str) for name in row]
        read = [_read_row(source, named(row), spec, f"{id_prefix}/{number}", key) for number, (source, row) in chunk]
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
        summary = summarise_dropped(dropped, most=1 if alike else 3)
        reasons = [f"{summary}; {_remedy(dropped)}"] if dropped else []
        reasons += [f"{counted(chosen.outside, 'row')} outside data.where ({chosen.seen})"] if chosen.outside else []
        raise DataError(f"{table.where}: no usable problem; {'; '.join(reasons) or 'it has no rows'}")
    unused: tuple[str, ...] = ()
    if not with_columns and "answer" in spec.columns:  # else code of the user's own may read any
        read_ones = {
            part
            for names in spec.columns.values()
            for name in (*names, *spec.where)
            for part in (name, name.split(".")[0])
        }
        unused = tuple(name for name in table.columns or first if name not in read_ones)
    return LoadedProblems(tuple(usable[number] for number in sorted(usable)), dropped, held_out, unused, chosen.outside)


class _Chosen:
    """The rows within `data.where`. `outside`: how many were not. A row without a number is left to `_read_row`, which
    drops it."""

    def __init__(self, where: Mapping[str, tuple[float, float]]) -> None:
        self._where = where
        self._spans: dict[str, tuple[float, float]] = {}  # lowest and highest number of each column
        self.outside = 0

    def admits(self, numbered: tuple[int, SourcedRow]) -> bool:
        _, (_, row) = numbered
        inside = True
        if isinstance(row, str):
            return inside
        for name, (least, most) in self._where.items():
            with suppress(UnusableRowError):
                number = number_in(row, name)
                low, high = self._spans.get(name, (number, number))
                self._spans[name] = min(low, number), max(high, number)
                inside &= least <= number <= most
        self.outside += not inside
        return inside

    @property
    def seen(self) -> str:
        return ", ".join(f"{name} goes from {low:.12g} to {high:.12g}" for name, (low, high) in self._spans.items())


_SAID = {"yes": 1, "true": 1, "no": 0, "false": 0}


def number_in(row: Row, name: str) -> float:
    """Return the number in a column, which may be written as text; true and yes are 1, false and no 0."""
    value = value_in(row, name)
    if isinstance(value, str):
        value = _SAID.get(value.strip().lower(), value)
    number = math.nan
    if not (isinstance(value, str) and "_" in value):  # Python reads 1_0 as 10
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)
    if math.isnan(number):
        raise UnusableRowError(f"no number in {name}: {shown(value)}")
    return number


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
        found = None if isinstance(row, str) else _read_question(row, spec)
    except UnusableRowError:
        return None
    return None if found is None else normalized_question(found[0])


def _read_row(source: str, row: Row | str, spec: BenchmarkSpec, problem_id: str, key: Key) -> Problem | DroppedRow:
    if isinstance(row, str):
        return DroppedRow(source, row)
    try:
        if fault := _missing_column(spec, row):
            raise UnusableRowError(fault)
        for name in spec.where:
            number_in(row, name)
        found = _read_question(row, spec)
        if found is None:
            raise UnusableRowError("no question")
        question, turns, reply = found
        written, solution = spec.read_gold(row)
        gold = _cleaned(written, spec.answer_tag)
        if choices := _choices_in(row, spec):
            gold = _letter(gold, choices, key)
    except UnusableRowError as error:
        return DroppedRow(source, str(error))
    # the gold answer alone, as in a copy of DAPO's table, is no worked solution
    solution = next((text for text in (solution, reply) if text not in (None, written)), None)
    return Problem(problem_id, question, gold, solution, source, turns)


def _read_question(row: Row, spec: BenchmarkSpec) -> tuple[str, tuple[Turn, ...], str | None] | None:
    """Return the question, its chat if that has more than the question, and the assistant's reply in the chat.

    None if there is no question.
    """
    columns, reply = spec.columns["question"], None
    turns = next((turns for name in columns if (turns := turns_in(row, name))), [])
    if turns:
        reply = turns.pop()[1] if turns[-1][0] == "assistant" else None
        if not turns or turns[-1][0] != "user":
            raise UnusableRowError(f"no user message to answer in {' or '.join(columns)}")
    else:
        texts = [text_in(row, (name,)) for name in columns] if spec.joined else [text_in(row, columns)]
        text = "\n\n".join(filter(None, texts))
        if not text:
            return None
        turns = [("user", text)]
    if choices := _choices_in(row, spec):
        listed = "\n".join(f"{letter}. {text}" for letter, text in choices.items())
        turns[-1] = ("user", f"{turns[-1][1]}\n\n{listed}")
    question = "\n\n".join(text for role, text in turns if role != "system")
    return question, tuple(turns) if len(turns) > 1 else (), reply


def _choices_in(row: Row, spec: BenchmarkSpec) -> dict[str, str]:
    """Return the answers to choose from by their letters: of a list of texts, of letters with texts (`{"A": ...}`), or
    of `{"label": [...], "text": [...]}`; none without such a column."""
    if "choices" not in spec.columns:
        return {}
    (name,) = spec.columns["choices"]
    stored = value_in(row, name)
    value = _written(stored) if isinstance(stored, str) and stored.lstrip()[:1] in ("[", "{") else stored
    if isinstance(value, Mapping) and isinstance(value.get("label"), list) and isinstance(value.get("text"), list):
        value = dict(zip(value["label"], value["text"], strict=False))
    if isinstance(value, list) and len(value) <= len(string.ascii_uppercase):
        value = dict(zip(string.ascii_uppercase, value, strict=False))
    if not isinstance(value, Mapping):
        raise UnusableRowError(f"{name} is no list of answers to choose from: {shown(stored)}")
    found = {str(letter): text_in({name: text}, (name,), number=True) for letter, text in value.items()}
    choices = {seen(letter).strip(): seen(text).strip() for letter, text in found.items() if text is not None}
    if len(choices) < 2:
        raise UnusableRowError(f"{name} has fewer than two answers to choose from")
    return choices


def _numbered(first: int) -> Key:
    return lambda gold, choices: [letter for number, letter in enumerate(choices, first) if str(number) == gold]


# How a table may store the right choice. Each returns the letters that a gold answer then means.
_KEYS: tuple[Key, ...] = (
    lambda gold, choices: [letter for letter in choices if letter == gold],
    lambda gold, choices: [letter for letter, text in choices.items() if text == gold],
    _numbered(0),
    _numbered(1),
)


def _key_of(rows: Iterable[Row | str], spec: BenchmarkSpec) -> Key:
    """Return how these rows store the right choice: as most of them can be read. One row alone cannot tell whether 1 is
    the text of a choice, the first or the second."""
    understood = [0] * len(_KEYS)
    for row in (row for row in rows if not isinstance(row, str)):
        with suppress(UnusableRowError):
            gold, choices = _cleaned(spec.read_gold(row)[0], spec.answer_tag), _choices_in(row, spec)
            understood = [count + (len(key(gold, choices)) == 1) for count, key in zip(understood, _KEYS, strict=True)]
    return _KEYS[understood.index(max(understood))]


def _letter(gold: str, choices: Mapping[str, str], key: Key) -> str:
    """Return the letter of the gold answer."""
    letters = key(gold, choices)
    if len(letters) != 1:
        raise UnusableRowError(f"gold answer is none of the choices: {shown(gold)}")
    return letters[0]


def _missing_column(spec: BenchmarkSpec, columns: Iterable[str]) -> str | None:
    present = list(columns)
    found = {meaning: [n for n in names if has_column(present, n)] for meaning, names in spec.columns.items()}
    missing = {meaning: " or ".join(spec.columns[meaning]) for meaning, names in found.items() if not names}
    missing |= {f"where {name}": name for name in spec.where if not has_column(present, name)}
    if spec.joined and (lacking := [name for name in spec.columns["question"] if name not in found["question"]]):
        missing["question"] = " and ".join(lacking)
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
    "tests of a program as gold answer": (
        "nothing here runs them: a plug-in may (rewards.plugins), with a function for the gold answer (data.gold)"
    ),
    "unusable gold answer": (
        "a gold answer is a number, an expression or a short text; for other text, set rewards.accuracy.equality: text"
    ),
}


def _remedy(dropped: Sequence[DroppedRow]) -> str:
    """Return the remedy for the most frequent fault of a file without a usable row."""
    kind = Counter(row.reason.partition(":")[0] for row in dropped).most_common(1)[0][0]
    return _REMEDIES.get(kind, _COLUMNS_REMEDY if kind.startswith("no column") else "correct the rows")


# -- names of columns -------------------------------------------------------------------------------------------------

# Names of columns by meaning, the surest first.
MEANINGS: dict[str, tuple[str, ...]] = {
    "question": (
        "question", "prompt", "problem", "query", "instruction", "messages", "conversations", "conversation", "chat",
        "input", "task", "exercise", "request", "user", "x", "q", "text",
    ),
    "answer": (
        "answer", "gold", "ground_truth", "groundtruth", "gt", "target", "label", "expected", "final", "correct",
        "truth", "reward_model", "reference", "reply", "result", "output", "completion", "response", "solution", "y",
        "a", "messages", "conversations", "conversation", "chat",
    ),
    "solution": (
        "solution", "rationale", "reasoning", "cot", "chain_of_thought", "explanation", "thought", "worked", "steps",
        "generation", "response", "completion", "output",
    ),
}  # fmt: skip
# A name with one of these words describes a text but does not hold it: question_id, answer_type, prompt_tokens.
_ABOUT = frozenset(
    "id ids idx index uuid url type kind level count num number length len tokens source name date score".split()
)
_INSIDE = {"reward_model": "reward_model.ground_truth"}  # in verl's data sets


def nearest_column(meaning: str, columns: Sequence[str]) -> str | None:
    """Return the column that means "question", "answer" or "solution", or else the one with the most similar name; None
    if there is none."""
    columns = [column for column in columns if column.isprintable()]
    plain = {column: "_".join(_words(column)) for column in columns}
    for name in MEANINGS[meaning]:
        if (found := next((column for column in columns if plain[column] == name), None)) is not None:
            return _INSIDE.get(found, found)
    texts = [column for column in columns if not _ABOUT & set(_words(column))]
    if (alike := nearest_of(meaning, texts, cutoff=0.75)) is not None:
        return alike
    for name in MEANINGS[meaning]:
        if (found := next((column for column in texts if name in _words(column)), None)) is not None:
            return found
    return None


def guessed_columns(columns: Sequence[str]) -> dict[str, Any]:
    """Guess the columns of question and answer for `gtpo init`, and those of a solution and choices, if there are some.

    What belongs to the question is joined with it: an `input` behind it, a `system` or a `context` before it.
    """
    found: dict[str, Any] = {}
    for meaning in MEANINGS:
        left = [column for column in columns if column not in found.values()]
        column = nearest_column(meaning, left)
        if column is None and meaning == "answer":
            column = nearest_column(meaning, columns)  # a chat that ends in the answer
        if column is not None:
            found[meaning] = column
    plain = {"_".join(_words(column)): column for column in columns if column not in found.values()}
    if choices := [plain[name] for name in ("choices", "options") if name in plain]:
        found["choices"] = choices[0]
    if found.get("question") not in (None, "messages", "conversations", "conversation", "chat"):
        before = [plain[name] for name in ("system", "system_prompt", "context", "passage") if name in plain]
        behind = [plain["input"]] if found["question"] == "instruction" and "input" in plain else []
        if before or behind:
            found["question"] = [*before, found["question"], *behind]
    return found


def suggestion(missing: Mapping[str, str], columns: Sequence[str], known: dict[str, str]) -> str:
    """Return '; did you mean prompt?' for missing columns. `missing` maps meanings to the names that are not there,
    `known` to the columns found."""
    left = [column for column in columns if column not in known.values()]
    near = {
        meaning: column
        for meaning, name in missing.items()
        if (column := nearest_of(name, left, cutoff=0.75) or (meaning in MEANINGS and nearest_column(meaning, left)))
    }
    return f"; did you mean {' and '.join(near.values())}?" if near else ""


def _words(column: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", column)]
