"""What a row says: its texts, its gold answer, its worked solution. A row without is named, never repaired."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Sequence
from typing import Any

from gtpo_cli.data.local import MAX_LINE_BYTES, Row


class UnusableRowError(ValueError):
    """This row gives no problem; the message is the reason that `DroppedRow` carries."""


def text_in(row: Row, names: Sequence[str], *, number: bool = False) -> str | None:
    """The text in the first of these columns that has one, stripped; None when all are absent or empty.

    `number`: a finite number counts as its text (27.0 as "27"). Raises UnusableRowError for any other value, for a text
    that is far too long, for a NUL character, and for a lone surrogate, which is how JSON and the CSV reader show bytes
    that are no UTF-8.
    """
    for name in names:
        value = row.get(name)
        if number and isinstance(value, float) and math.isfinite(value):
            value = repr(int(value) if value.is_integer() else value)
        elif number and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if value is None:
            continue
        if not isinstance(value, str):
            raise UnusableRowError(f"{name} is no text: {type(value).__name__} {shown(value)}")
        if len(value) > MAX_LINE_BYTES:  # from Parquet or the hub, which have no lines
            raise UnusableRowError(f"{name} too long: more than {MAX_LINE_BYTES // 2**20} MiB")
        if "\0" in value:
            raise UnusableRowError(f"NUL character in {name}")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise UnusableRowError(f"not UTF-8: {name}")
        if stripped := value.strip():
            return stripped
    return None


def gsm8k_gold(row: Row) -> tuple[str, str | None]:
    """Gold: what follows the last `####`. Solution: what is before it, without the <<48/2=24>> calculator marks."""
    worked, mark, gold = (text_in(row, ("answer",)) or "").rpartition("####")
    if not mark:
        raise UnusableRowError("no #### in answer")
    if not gold.strip():
        raise UnusableRowError("empty gold answer")
    return gold.strip(), re.sub(r"<<[^<>]*>>", "", worked).strip() or None


def boxed_gold(row: Row) -> tuple[str, str | None]:
    """Gold: the last box of the solution; the answer column where there is no box or an empty one.
    Solution: the whole solution.
    """
    solution = text_in(row, ("solution",))
    box = last_boxed(solution) if solution else None
    gold = (box or "").strip() or text_in(row, ("answer",), number=True)
    if gold is None:
        if solution is None:
            raise UnusableRowError("no solution and no answer")
        raise UnusableRowError("no \\boxed{} in solution" if box is None else "empty gold answer")
    return gold, solution


def column_gold(row: Row, *, answer: str = "answer", solution: str | None = "solution") -> tuple[str, str | None]:
    """Gold: one column, as it is. Solution: another, where there is one."""
    gold = text_in(row, (answer,), number=True)
    if gold is None:
        raise UnusableRowError("empty gold answer")
    return gold, None if solution is None else text_in(row, (solution,))


def last_boxed(text: str) -> str | None:
    r"""What is inside the last `\boxed{...}` or `\fbox{...}` with balanced braces (`\{` and `\}` do not count), or the
    word after `\boxed ` without braces. None when there is no box, or its braces never close. "" for an empty box.
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


def shown(value: Any) -> str:
    """A value in a message: its repr, cut to 80 characters."""
    text = _SHORT.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# Looks only at the first values of a list of millions, and only so deep.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict = 6, 20, 20
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
