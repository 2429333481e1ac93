"""Read a row's gold answer and its worked solution. A row without a gold answer is reported, never repaired."""

from __future__ import annotations

import re
from collections.abc import Callable

from gtpo_cli.data.cells import UnusableRowError, text_in
from gtpo_cli.data.local import Row
from gtpo_cli.errors import DataError
from gtpo_cli.runs.user_code import import_function, running
from gtpo_cli.types import CodeName

GoldReader = Callable[[Row], tuple[str, str | None]]  # gold answer, worked solution or None; raises UnusableRowError


def gsm8k_gold(row: Row) -> tuple[str, str | None]:
    """Gold: the text after the last `####`. Solution: the text before it, without calculator marks (<<48/2=24>>)."""
    return _hashes(text_in(row, ("answer",)) or "", "answer")


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


def column_gold(row: Row, *, answer: str = "answer", solution: str | None = "solution") -> tuple[str, str | None]:
    """Gold: one column, unchanged. Solution: another column, if there is one."""
    gold = text_in(row, (answer,), number=True)
    if gold is None:
        raise UnusableRowError("empty gold answer")
    return gold, None if solution is None else text_in(row, (solution,))


def own_gold(gold: str, *, answer: str, solution: str | None) -> GoldReader:
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
        value, worked = read(text, answer)
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
    if text.rpartition("\n")[2].lstrip().startswith("####"):
        return _hashes(text, column)
    return _boxed(text, column) if (last_boxed(text) or "").strip() else (text, None)


_READERS: dict[str, Callable[[str, str], tuple[str, str | None]]] = {
    "auto": _auto, "column": _column, "hashes": _hashes, "boxed": _boxed,
}  # fmt: skip


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` or `\fbox{...}` with balanced braces (`\{` and `\}` do not count),
    or the word after `\boxed ` without braces. None if there is no box or its braces never close; "" for an empty box.
    """
    boxes = list(re.finditer(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*", text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if not text.startswith("{", start):
        word = re.match(r"[^\s$]+", text[start:])
        return word.group().rstrip(".,") if word else None
    depth = 0
    for token in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth == 0 and token.group() == "}":
            return text[start + 1 : start + token.start()]
    return None
