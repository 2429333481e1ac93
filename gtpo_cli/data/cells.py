"""Read a column of a row: text, a number or chat messages. A row without any of these is reported, never repaired."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gtpo_cli.data.local import MAX_LINE_BYTES, Row
from gtpo_cli.text import shown, some
from gtpo_cli.types import Turn

# Role names of OpenAI, the hub and ShareGPT.
_ROLES = {
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
        if _is_chat(value):
            (*_, (role, last)) = turns_in(row, name)
            value = last if role == "assistant" else None
        elif number and isinstance(value, float) and math.isfinite(value):
            value = repr(int(value) if value.is_integer() else value)
        elif number and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if stripped := _text(name, value):
            return stripped
    return None


def turns_in(row: Row, name: str) -> list[Turn]:
    """Return the chat messages in a column without blank ones; an empty list if it holds something else.

    Raises UnusableRowError for an unknown role, a message without text, or only blank messages.
    """
    value = value_in(row, name)
    turns: list[Turn] = []
    for message in value if _is_chat(value) else ():
        role = message.get("role", message.get("from"))
        if role not in _ROLES:
            raise UnusableRowError(f"a message in {name} has an unknown role: {shown(role)}")
        content = message.get("content", message.get("value"))
        if isinstance(content, list):
            content = "".join(_part(name, part) for part in content)
        if text := _text(name, content):
            turns.append((_ROLES[role], text))
    if _is_chat(value) and not turns:
        raise UnusableRowError(f"only blank messages in {name}")
    return turns


def value_in(row: Row, name: str) -> Any:
    """Return the value of a column; for `a.b` where there is no such column, that of `b` within `a`. None if absent."""
    if name in row or "." not in name:
        return row.get(name)
    value: Any = row
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, Mapping) and ("role" in message or "from" in message) for message in value)
    )


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
