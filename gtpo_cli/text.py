"""Escape and shorten untrusted text for the place where it is shown: a terminal, Markdown, a file's name."""

from __future__ import annotations

import difflib
import hashlib
import re
import reprlib
from collections.abc import Container, Iterable, Sequence

_NAME_LENGTH = 60

# Characters that control a terminal or change the reading order: C0 (but tab and line feed), DEL, C1, direction marks,
# the two other line ends, lone surrogates. Each becomes one visible character.
_STEERING = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)} | {0x7F: 0x2421}
_STEERING |= dict.fromkeys(
    (
        *range(0x80, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF,
        *range(0xD800, 0xE000), *range(0xE0000, 0xE0080),
    ),
    0xFFFD,
)  # fmt: skip


def printable(text: str) -> str:
    """Replace each character that controls a terminal by a visible one, such as the symbol for escape."""
    return text if text.isascii() and text.isprintable() else text.translate(_STEERING)


def one_line(text: str, *, most: int = 300) -> str:
    """Return the text on one line of at most `most` characters, without terminal control characters."""
    text = printable(" ".join(text[: 20 * most].split()))
    return text if len(text) <= most else text[: most - 3] + "..."


class _Short(reprlib.Repr):
    def repr_instance(self, x: object, level: int) -> str:
        return repr(x)  # may raise


def shown(value: object, *, most: int = 80) -> str:
    """Format an untrusted value for a message: its repr, shortened to one line, or its type if repr fails.

    Of a long list only the first values are formatted, and nesting is limited.
    """
    short = _Short()
    short.maxlevel, short.maxlist, short.maxdict = 6, 20, 20
    short.maxstring = short.maxother = short.maxlong = 4 * most  # otherwise reprlib cuts out the middle
    try:
        return one_line(short.repr(value), most=most)
    except Exception:  # noqa: BLE001 - a user's __repr__, or a number with too many digits
        return f"a {type(value).__name__}"


def counted(number: int, noun: str, form: str = "") -> str:
    """Format a count with its noun: `1 problem`, `2 problems`; `form` is the number's format."""
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"


def some(names: Sequence[str], *, most: int = 10) -> str:
    """List untrusted names in one line: `a, b and c`, or the first ones and how many more there are."""
    parts = [one_line(name, most=100) for name in names[:most]]
    if len(names) > most:
        parts.append(f"{len(names) - most:,} more")
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def folded(text: str, width: int, column: int = 0) -> str:
    """Wrap text at blanks so that no line is wider than `width` cells. `column`: where on its line the text begins.

    A longer word stays whole, since it may be a path to copy, and `95 %` stays together. Continuation lines are
    indented to the line's last column (after two blanks) if that is in the left half.
    """
    from rich.cells import cell_len

    parts: list[str] = []
    for line in text.split("\n"):
        *_, gap = (0, *(blanks.end() for blanks in re.finditer(r"  +" if column else r"^ +|  +", line)))
        hang = "# " if line.startswith("# ") else " " * (gap if gap <= width // 2 else 0)
        for blanks, word in re.findall(r"( *)([^ ]*(?:(?<=\d) %[^ ]*)?)", line):
            cells = len(blanks) + cell_len(word)
            if blanks and column and column + cells > width:
                blanks, cells, column = f"\n{hang}", len(hang) + cell_len(word), 0
            parts += blanks, word
            column += cells
        parts.append("\n")
        column = 0
    return "".join(parts[:-1])


def describe(error: BaseException, *, most: int = 300) -> str:
    """Format an exception in one line as class and message, even if its `__str__` fails."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - a __str__ of somebody else
        said = ""
    return one_line(f"{type(error).__name__}: {said}".rstrip(": "), most=most)


def nearest_of(name: str, choices: Iterable[str], *, cutoff: float) -> str | None:
    """Return the choice most similar to `name`; None if none is similar."""
    near = difflib.get_close_matches(name, [choice for choice in choices if choice.isprintable()], n=1, cutoff=cutoff)
    return near[0] if near else None


def did_you_mean(name: str, choices: Iterable[str], otherwise: str) -> str:
    """Return 'did you mean X?' for the choice most similar to `name`, or `otherwise` if none is similar."""
    near = nearest_of(name, choices, cutoff=0.5)
    return otherwise if near is None else f"did you mean {near}?"


def markdown_text(text: str) -> str:
    """Escape text so that Markdown, even in a table, shows it unchanged on one line."""
    return re.sub(r"([\\`*{}\[\]<>#|!~&]|(?<!\w)_|_(?!\w))", r"\\\1", printable(" ".join(text.split())))


def markdown_sentence(text: str) -> str:
    """Escape one of gtpo's sentences, which may contain untrusted names, for Markdown: no HTML, link, code or table."""
    return re.sub(r"([\\`<>\[\]|!&])", r"\\\1", printable(text))


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Container[int] = ()) -> str:
    """Build a table from cells that are Markdown already; `numbers`: the columns to align right."""
    rule = "|".join("---:" if column in numbers else "---" for column in range(len(header)))
    lines = [f"| {' | '.join(header)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def file_name(name: str) -> str:
    """Turn a name into a part of a file name: at most 60 letters, digits, `.`, `_`, `-`, and no folder.

    A changed name gets eight hexadecimal digits of its own, so that different names stay different.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name[: 4 * _NAME_LENGTH]).strip("-.")[:_NAME_LENGTH]
    if plain and plain == name:
        return name
    digits = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain}-{digits}".lstrip("-")
