r"""Read a completion: score its format, and extract its answer.

A recipe says where the answer stands (`rewards.answer`):
- tags: between the tags that it names (`rewards.format.tags`). The paper's are `<reasoning> </reasoning> <answer>
  </answer>`; a task without reasoning has only the answer tags.
- boxed: in `\boxed{...}` or `\fbox{...}` with balanced braces. Boxes that only a comma, a semicolon, `and` or `or`
  joins are one answer: "$\boxed{2}$ and $x = \boxed{3}$" gives "2, 3".
- hashes: behind `####` on its line.
- last_line: behind `Answer:` (also `Final answer:`, bold or not) on its line, or on the next if nothing follows; else
  the last line.

If the recipe names a reasoning tag, the answer follows the closing one.

Modes (`rewards.format.mode`; docs/objective.md, section 2):
- strict: all tags once each and in order; exactly one box, `####` or `Answer:`, complete, at the end.
- presence: the paper's sentence taken literally; each part occurs somewhere, and the last answer counts.

Tags are matched exactly (case counts). All functions take time linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from gtpo_cli.types import Tags

# -- where answers stand in any text: completions and gold answers are read by these -----------------------------------

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


# -- completions -------------------------------------------------------------------------------------------------------

FormatMode = Literal["strict", "presence"]

# Shown if `extract_answer` returns None, since a reader may still see an answer.
NO_ANSWER = "none read: the completion is not as rewards.format.mode asks"
FULL_MARKS = 10.0  # for the format, and for the right answer
_FIND: dict[str, Callable[[str], list[Found]]] = {"boxed": boxes, "hashes": hashes, "last_line": lines}
_END = re.compile(r"(?:[\s$.*_]|\\[)\]]|\\end\{[a-z]+\*?\})*\Z")  # what may follow the answer


PAPER_TAGS = Tags()


def tag_pair(name: str) -> tuple[str, str]:
    """Return `<name>` and `</name>`."""
    return f"<{name}>", f"</{name}>"


def tag_texts(tags: Tags = PAPER_TAGS) -> tuple[str, ...]:
    """Return the tags as written, in the order of a completion: those of the reasoning, if any, and of the answer if it
    stands in tags."""
    reasoning = () if tags.reasoning is None else tag_pair(tags.reasoning)
    return (*reasoning, *(tag_pair(tags.answer) if tags.place == "tags" else ()))


TAGS = tag_texts()  # the paper's four
ANSWER_TAGS = frozenset("answer ans solution final final_answer result output".split())  # what people call the answer's


def is_strict_format(text: str, *, tags: Tags = PAPER_TAGS) -> bool:
    """Return whether all tags occur once each and in order (text around the blocks is allowed), and whether an answer
    that stands in no tags is the only one, complete, and at the end."""
    texts = tag_texts(tags)
    positions = [text.find(tag) for tag in texts]
    if positions != sorted(positions) or any(text.count(tag) != 1 for tag in texts):
        return False
    if tags.place == "tags":
        return True
    text = _behind_reasoning(text, tags)
    found = _FIND[tags.place](text)
    whole = tags.place != "boxed" or not has_open_box(text)
    return len(found) == 1 and whole and _END.match(text, found[0].end) is not None


def extract_answer(text: str, *, mode: FormatMode = "strict", tags: Tags = PAPER_TAGS) -> str | None:
    """Return the stripped answer ("" if there is nothing in its tags or its box), or None.

    strict: None unless `is_strict_format`. presence: the last complete answer; of tags, without an answer tag inside;
    of last_line, the last line if nothing follows `Answer:`.
    """
    if mode == "strict" and not is_strict_format(text, tags=tags):
        return None
    if tags.place != "tags":
        text = _behind_reasoning(text, tags)
        found = _FIND[tags.place](text)
        last = text.strip().rpartition("\n")[2].strip() if tags.place == "last_line" else ""
        return found[-1].answer if found else last or None
    opening_tag, closing_tag = tag_pair(tags.answer)
    # The last <answer> that a </answer> follows, up to the first </answer> behind it.
    opening = text.rfind(opening_tag, 0, max(text.rfind(closing_tag), 0))
    if opening < 0:
        return None
    start = opening + len(opening_tag)
    return text[start : text.index(closing_tag, start)].strip()


def format_reward(text: str, *, mode: FormatMode = "strict", tags: Tags = PAPER_TAGS) -> float:
    """Return 10 if all parts are present, 1 if only some are, 0 if none is: tags, and the answer if it stands in none.

    The mode defines "present". strict: `is_strict_format`. presence: somewhere.
    """
    present = [tag in text for tag in tag_texts(tags)]
    if tags.place != "tags":
        present.append(bool(_FIND[tags.place](_behind_reasoning(text, tags))))
    complete = is_strict_format(text, tags=tags) if mode == "strict" else all(present)
    return FULL_MARKS if complete else 1.0 if any(present) else 0.0


def _behind_reasoning(text: str, tags: Tags) -> str:
    """Return the text behind the last closing tag of the reasoning: nothing if it is open, all if it never began."""
    if tags.reasoning is None:
        return text
    opening, closing = tag_pair(tags.reasoning)
    return "" if opening in text and closing not in text else text.rpartition(closing)[2]
