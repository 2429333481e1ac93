"""Reading a completion: are the tags there, and what stands between the answer tags.

A recipe names the tags (`rewards.format.tags`); the paper's are `<reasoning> </reasoning> <answer> </answer>`, and a
task without reasoning has the two of the answer only. Modes, as in docs/objective.md, section 2 (recipe key
`rewards.format.mode`):
- strict: all tags once each and in order.
- presence: the paper's sentence taken literally; each tag occurs somewhere.
- released_code: the authors' pattern; a reasoning block anywhere, and an answer block that ends the text.

Tags are matched exactly (case counts). All functions take time linear in the length of the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

FormatMode = Literal["strict", "presence", "released_code"]


class TagNames(Protocol):
    """What is read of a recipe's `rewards.format.tags`; `Tags` where there is no recipe."""

    @property
    def reasoning(self) -> str | None: ...
    @property
    def answer(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Tags:
    """The names of the tags, without their angle brackets; `reasoning` None: the completion has no such block."""

    reasoning: str | None = "reasoning"
    answer: str = "answer"


PAPER_TAGS = Tags()


def tag_pair(name: str) -> tuple[str, str]:
    """`<name>` and `</name>`."""
    return f"<{name}>", f"</{name}>"


def tag_texts(tags: TagNames = PAPER_TAGS) -> tuple[str, ...]:
    """The tags as they are written, in the order of a completion: four, or two without reasoning."""
    reasoning = () if tags.reasoning is None else tag_pair(tags.reasoning)
    return (*reasoning, *tag_pair(tags.answer))


TAGS = tag_texts()  # the paper's four


def is_strict_format(text: str, *, tags: TagNames = PAPER_TAGS) -> bool:
    """True when all tags are there once each and in order; text around the blocks is allowed."""
    texts = tag_texts(tags)
    positions = [text.find(tag) for tag in texts]
    return all(text.count(tag) == 1 for tag in texts) and positions == sorted(positions)


def extract_answer(text: str, *, mode: FormatMode = "strict", tags: TagNames = PAPER_TAGS) -> str | None:
    """The stripped text between the answer tags ("" when nothing is there), or None.

    strict: None unless `is_strict_format`. presence: the last complete `<answer>...</answer>` without an answer tag
    inside. released_code: everything from the first `<answer>` to the `</answer>` that ends the text.
    """
    if mode == "strict":
        return _last_answer(text, tags) if is_strict_format(text, tags=tags) else None
    if mode == "presence":
        return _last_answer(text, tags)
    return _final_answer(text, tags)


def has_reasoning_block(text: str, *, tags: TagNames = PAPER_TAGS) -> bool:
    """True when a `</reasoning>` follows a `<reasoning>`, or where no such block is asked for."""
    if tags.reasoning is None:
        return True
    opening_tag, closing_tag = tag_pair(tags.reasoning)
    opening = text.find(opening_tag)
    return opening >= 0 and text.find(closing_tag, opening) >= 0


def has_final_answer_block(text: str, *, tags: TagNames = PAPER_TAGS) -> bool:
    """True when the text ends with `</answer>` (and at most one line break) after an `<answer>`."""
    return _final_answer(text, tags) is not None


def _last_answer(text: str, tags: TagNames) -> str | None:
    # The last <answer> that a </answer> follows, up to the first </answer> behind it.
    opening_tag, closing_tag = tag_pair(tags.answer)
    opening = text.rfind(opening_tag, 0, max(text.rfind(closing_tag), 0))
    if opening < 0:
        return None
    start = opening + len(opening_tag)
    return text[start : text.index(closing_tag, start)].strip()


def _final_answer(text: str, tags: TagNames) -> str | None:
    opening_tag, closing_tag = tag_pair(tags.answer)
    body = text.removesuffix("\n")
    opening = body.find(opening_tag)
    if opening < 0 or not body.endswith(closing_tag):
        return None
    return body[opening + len(opening_tag) : -len(closing_tag)].strip()
