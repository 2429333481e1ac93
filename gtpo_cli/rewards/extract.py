"""Reading a completion: are the tags there, what is that worth, and what stands between the answer tags.

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
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:  # a grading worker does without pydantic
    from gtpo_cli.recipe.rewards import TagsRecipe

FormatMode = Literal["strict", "presence", "released_code"]

# Said where `extract_answer` gives None: a reader may well see an answer there.
NO_ANSWER = "none read: the tags are not as rewards.format.mode asks"
FULL_MARKS = 10.0  # for the format, and for the right answer


@dataclass(frozen=True, slots=True)
class Tags:
    """The names of the tags, without their angle brackets; `reasoning` None: the completion has no such block.

    For who has no recipe; whoever has one takes its `rewards.format.tags`.
    """

    reasoning: str | None = "reasoning"
    answer: str = "answer"


TagNames: TypeAlias = "Tags | TagsRecipe"
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
    inside. released_code: everything from the first `<answer>` to the `</answer>` that ends the text, but for one line
    break behind it.
    """
    opening_tag, closing_tag = tag_pair(tags.answer)
    if mode == "released_code":
        body = text.removesuffix("\n")
        opening = body.find(opening_tag)
        if opening < 0 or not body.endswith(closing_tag):
            return None
        return body[opening + len(opening_tag) : -len(closing_tag)].strip()
    if mode == "strict" and not is_strict_format(text, tags=tags):
        return None
    # The last <answer> that a </answer> follows, up to the first </answer> behind it.
    opening = text.rfind(opening_tag, 0, max(text.rfind(closing_tag), 0))
    if opening < 0:
        return None
    start = opening + len(opening_tag)
    return text[start : text.index(closing_tag, start)].strip()


def format_reward(text: str, *, mode: FormatMode = "strict", tags: TagNames = PAPER_TAGS) -> float:
    """10 if all tags are there, 1 if only some are, 0 if none is. What "there" means depends on the mode.

    strict: once each and in order. presence: somewhere. released_code: 10 for a reasoning block and an answer block
    that ends the text; with only one of the two blocks 1.5 if a tag of the other kind occurs too, else 1; with
    neither 0, whatever single tags there are.
    """
    present = [tag in text for tag in tag_texts(tags)]
    if mode != "released_code":
        complete = is_strict_format(text, tags=tags) if mode == "strict" else all(present)
        return FULL_MARKS if complete else 1.0 if any(present) else 0.0
    reasoning, answer = _has_reasoning_block(text, tags), extract_answer(text, mode=mode, tags=tags) is not None
    if reasoning and answer:
        return FULL_MARKS
    if not reasoning and not answer:
        return 0.0
    return 1.5 if any(present[-2:] if reasoning else present[:-2]) else 1.0


def _has_reasoning_block(text: str, tags: TagNames) -> bool:
    """True when a `</reasoning>` follows a `<reasoning>`, or where no such block is asked for."""
    if tags.reasoning is None:
        return True
    opening_tag, closing_tag = tag_pair(tags.reasoning)
    opening = text.find(opening_tag)
    return opening >= 0 and text.find(closing_tag, opening) >= 0
