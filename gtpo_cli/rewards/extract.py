"""Read a completion: check its tags, score its format, and extract the text between the answer tags.

A recipe names the tags (`rewards.format.tags`). The paper's are `<reasoning> </reasoning> <answer> </answer>`; a task
without reasoning has only the answer tags. Modes (recipe key `rewards.format.mode`; docs/objective.md, section 2):
- strict: all tags once each and in order.
- presence: the paper's sentence taken literally; each tag occurs somewhere.

Tags are matched exactly (case counts). All functions take time linear in the length of the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:  # a grading worker does without pydantic
    from gtpo_cli.recipe.rewards import TagsRecipe

FormatMode = Literal["strict", "presence"]

# Shown if `extract_answer` returns None, since a reader may still see an answer.
NO_ANSWER = "none read: the tags are not as rewards.format.mode asks"
FULL_MARKS = 10.0  # for the format, and for the right answer


@dataclass(frozen=True, slots=True)
class Tags:
    """The names of the tags, without angle brackets; `reasoning`: None if completions have no such block.

    This is for callers without a recipe; others use its `rewards.format.tags`.
    """

    reasoning: str | None = "reasoning"
    answer: str = "answer"


TagNames: TypeAlias = "Tags | TagsRecipe"
PAPER_TAGS = Tags()


def tag_pair(name: str) -> tuple[str, str]:
    """Return `<name>` and `</name>`."""
    return f"<{name}>", f"</{name}>"


def tag_texts(tags: TagNames = PAPER_TAGS) -> tuple[str, ...]:
    """Return the tags as written, in the order of a completion: four, or two without reasoning."""
    reasoning = () if tags.reasoning is None else tag_pair(tags.reasoning)
    return (*reasoning, *tag_pair(tags.answer))


TAGS = tag_texts()  # the paper's four


def is_strict_format(text: str, *, tags: TagNames = PAPER_TAGS) -> bool:
    """Return whether all tags occur once each and in order; text around the blocks is allowed."""
    texts = tag_texts(tags)
    positions = [text.find(tag) for tag in texts]
    return all(text.count(tag) == 1 for tag in texts) and positions == sorted(positions)


def extract_answer(text: str, *, mode: FormatMode = "strict", tags: TagNames = PAPER_TAGS) -> str | None:
    """Return the stripped text between the answer tags ("" if there is nothing), or None.

    strict: None unless `is_strict_format`. presence: the last complete `<answer>...</answer>` without an answer tag
    inside.
    """
    opening_tag, closing_tag = tag_pair(tags.answer)
    if mode == "strict" and not is_strict_format(text, tags=tags):
        return None
    # The last <answer> that a </answer> follows, up to the first </answer> behind it.
    opening = text.rfind(opening_tag, 0, max(text.rfind(closing_tag), 0))
    if opening < 0:
        return None
    start = opening + len(opening_tag)
    return text[start : text.index(closing_tag, start)].strip()


def format_reward(text: str, *, mode: FormatMode = "strict", tags: TagNames = PAPER_TAGS) -> float:
    """Return 10 if all tags are present, 1 if only some are, 0 if none is. The mode defines "present".

    strict: once each and in order. presence: somewhere.
    """
    present = [tag in text for tag in tag_texts(tags)]
    complete = is_strict_format(text, tags=tags) if mode == "strict" else all(present)
    return FULL_MARKS if complete else 1.0 if any(present) else 0.0
