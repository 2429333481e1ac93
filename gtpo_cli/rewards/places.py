r"""Find answers in a text: in boxes, behind hashes, behind `Answer:`.

- boxes: `\boxed{...}` or `\fbox{...}` with balanced braces. Boxes that only a comma, a semicolon, `and` or `or` joins
  are one answer: "$\boxed{2}$ and $x = \boxed{3}$" gives "2, 3".
- hashes: what follows `####` on its line.
- lines: what follows `Answer:` (also `Final answer:`, bold or not) on its line, or the next line if nothing does.

Completions and gold answers are read by these. Linear in the text's length, pure standard library.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_BRACES = re.compile(_BOX.pattern + r"(\{)?|\\.|[{}]", re.DOTALL)
_JOINED = re.compile(
    r"[\s$.]*(?:\\[()\]\[,;! ]|\\q?quad)?[\s$.]*(?:[,;]\s*)?(?:\\text\s*\{\s*(?:and|or)\s*\}|and|or)?"
    r"[\s$]*(?:\\[()\]\[,;! ]|\\q?quad)*[\s$]*(?:[A-Za-z]\w?(?:\([a-z]\))?\s*=\s*)?"
)
_MOST_BETWEEN = 40  # characters
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_ANSWER = re.compile(r"(?im)^[ \t>*_#]*(?:the\s+)?(?:final\s+)?answer(?:\s+is)?[ \t*_]*:[ \t*_]*(\S[^\n]*|\s*\S[^\n]*)")


class Found(NamedTuple):
    """An answer, where in the text what holds it begins and ends, and the answers of joined boxes."""

    answer: str
    start: int
    end: int
    parts: tuple[str, ...] = ()


def boxes(text: str) -> list[Found]:
    """Return the complete boxes in order, joined ones as one answer."""
    found: list[Found] = []
    for box in _read_boxes(text)[0]:
        between = text[found[-1].end : box.start] if found else ""
        if found and len(between) < _MOST_BETWEEN and re.search(r"[,;]|and|or", between) and _JOINED.fullmatch(between):
            last = found.pop()
            parts = (*(last.parts or (last.answer,)), box.answer)
            box = Found(", ".join(parts), last.start, box.end, parts)
        found.append(box)
    return found


def has_open_box(text: str) -> bool:
    """Return whether a box has no braces or does not close."""
    return _read_boxes(text)[1]


def _read_boxes(text: str) -> tuple[list[Found], bool]:
    r"""Return the complete boxes that are in no other, and whether some are incomplete. `\{` and `\}` are no braces."""
    found: list[Found] = []
    opened: list[tuple[int, int] | None] = []  # of a box: where it and its content begin; None for another brace
    bare = False
    for token in _BRACES.finditer(text):
        if token[0] == "{":
            opened.append(None)
        elif token[0] == "}":
            if opened and (box := opened.pop()):
                while found and found[-1].start > box[0]:
                    found.pop()
                found.append(Found(text[box[1] : token.start()].strip(), box[0], token.end()))
        elif token[1]:
            opened.append((token.start(), token.end()))
        elif _BOX.match(token[0]):
            bare = True
    return found, bare or any(opened)


def bare_box(text: str) -> str | None:
    r"""Return the word after the last `\boxed` without braces; None if there is none."""
    words = [re.match(r"[^\s${]+", text[opening.end() :]) for opening in _BOX.finditer(text)]
    named = [word.group().rstrip(".,") for word in words if word]
    return named[-1] if named else None


def hashes(text: str) -> list[Found]:
    """Return what follows each `####` on its line, where anything does."""
    found = (Found(mark[1].strip(), mark.start(), mark.end()) for mark in _HASHES.finditer(text))
    return [each for each in found if each.answer]


def lines(text: str) -> list[Found]:
    """Return what follows each `Answer:`."""
    found = (Found(mark[1].strip().strip("*_").strip(), mark.start(), mark.end()) for mark in _ANSWER.finditer(text))
    return [each for each in found if each.answer]
