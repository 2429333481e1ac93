"""Reading a completion: are the four tags there, and what stands between the answer tags.

Modes, as in docs/objective.md, section 2 (recipe key `rewards.format.mode`):
- strict: all four tags once each and in order.
- presence: the paper's sentence taken literally; each tag occurs somewhere.
- released_code: the authors' pattern; a reasoning block anywhere, and an answer block that ends the text.

Tags are matched exactly (case counts). All functions take time linear in the length of the text.
"""

from __future__ import annotations

from typing import Literal

FormatMode = Literal["strict", "presence", "released_code"]

REASONING_OPEN, REASONING_CLOSE = "<reasoning>", "</reasoning>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
TAGS = (REASONING_OPEN, REASONING_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)


def is_strict_format(text: str) -> bool:
    """True when all four tags are there once each and in order; text around the blocks is allowed."""
    positions = [text.find(tag) for tag in TAGS]
    return all(text.count(tag) == 1 for tag in TAGS) and positions == sorted(positions)


def extract_answer(text: str, *, mode: FormatMode = "strict") -> str | None:
    """The stripped text between the answer tags ("" when nothing is there), or None.

    strict: None unless `is_strict_format`. presence: the last complete `<answer>...</answer>` without an answer tag
    inside. released_code: everything from the first `<answer>` to the `</answer>` that ends the text.
    """
    if mode == "strict":
        return _last_answer(text) if is_strict_format(text) else None
    if mode == "presence":
        return _last_answer(text)
    return _final_answer(text)


def has_reasoning_block(text: str) -> bool:
    """True when a `</reasoning>` follows a `<reasoning>`."""
    opening = text.find(REASONING_OPEN)
    return opening >= 0 and text.find(REASONING_CLOSE, opening) >= 0


def has_final_answer_block(text: str) -> bool:
    """True when the text ends with `</answer>` (and at most one line break) after an `<answer>`."""
    return _final_answer(text) is not None


def _last_answer(text: str) -> str | None:
    # The last <answer> that a </answer> follows, up to the first </answer> behind it.
    opening = text.rfind(ANSWER_OPEN, 0, max(text.rfind(ANSWER_CLOSE), 0))
    if opening < 0:
        return None
    start = opening + len(ANSWER_OPEN)
    return text[start : text.index(ANSWER_CLOSE, start)].strip()


def _final_answer(text: str) -> str | None:
    body = text.removesuffix("\n")
    opening = body.find(ANSWER_OPEN)
    if opening < 0 or not body.endswith(ANSWER_CLOSE):
        return None
    return body[opening + len(ANSWER_OPEN) : -len(ANSWER_CLOSE)].strip()
