r"""Read a completion: score its format, and extract its answer.

A recipe says where the answer stands (`rewards.answer`):
- tags: between the tags that it names (`rewards.format.tags`). The paper's are `<reasoning> </reasoning> <answer>
  </answer>`; a task without reasoning has only the answer tags.
- boxed: in `\boxed{}`. hashes: behind `####`. last_line: behind `Answer:`, or in the last line. If the recipe names a
  reasoning tag, the answer follows the closing one (`places.py`).

Modes (`rewards.format.mode`; docs/objective.md, section 2):
- strict: all tags once each and in order; exactly one box, `####` or `Answer:`, complete, at the end.
- presence: the paper's sentence taken literally; each part occurs somewhere, and the last answer counts.

Tags are matched exactly (case counts). All functions take time linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from gtpo_cli.rewards.places import Found, boxes, has_open_box, hashes, lines
from gtpo_cli.types import Tags

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
    """Return the text behind the last closing tag of the reasoning; all of it without one."""
    return text if tags.reasoning is None else text.rpartition(tag_pair(tags.reasoning)[1])[2]
