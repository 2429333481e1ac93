"""Wrong answers made from gold answers, each by one small change. Used by test_shared_answers.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

_BRACKETED = re.compile(r"[(\[]([^()\[\]]+,[^()\[\]]+)[)\]]")  # a tuple or an interval
_OTHER_BRACKETS = str.maketrans("([)]", "[(])")


def _signs(gold: str) -> list[str]:
    is_nothing = "0" in gold and not re.search("[1-9]", gold)  # 0 and -0 are the same
    begins_with_nothing = re.match(r"0(?![.0-9])", gold)  # the list 0, 1
    if is_nothing or begins_with_nothing:
        return []
    return [gold[1:] if gold.startswith("-") else f"-{gold}"]


def _digits(gold: str) -> list[str]:
    """Each digit in turn is the next one; 9 becomes 1."""
    places = [match.start() for match in re.finditer("[0-9]", gold)]
    return [f"{gold[:place]}{int(gold[place]) % 9 + 1}{gold[place + 1 :]}" for place in places]


def _one_digit_more(gold: str) -> list[str]:
    return [gold[: match.start()] + "1" + gold[match.start() :] for match in re.finditer("[0-9]+", gold)]


def _order(gold: str) -> list[str]:
    whole = _BRACKETED.fullmatch(gold)
    parts = [part.strip() for part in whole[1].split(",")] if whole else []
    return [] if parts == parts[::-1] else [f"{gold[0]}{', '.join(parts[::-1])}{gold[-1]}"]


def _part(gold: str) -> list[str]:
    is_list = "," in gold and not re.search(r"[(\[{]|[0-9],[0-9]{3}", gold)
    return [gold.rpartition(",")[0], gold.partition(",")[2]] if is_list else []


def _bracket(gold: str) -> list[str]:
    if not _BRACKETED.fullmatch(gold):
        return []
    return [gold[0].translate(_OTHER_BRACKETS) + gold[1:], gold[:-1] + gold[-1].translate(_OTHER_BRACKETS)]


def _base(gold: str) -> list[str]:
    based = re.fullmatch(r"([0-9]+)_\{?([0-9]+)\}?", gold)
    return [f"{based[1]}_{{{int(based[2]) + 1}}}", f"{based[1]}_{{{int(based[2]) - 1}}}"] if based else []


def _unit(gold: str) -> list[str]:
    other = re.sub(r"\\text\{ ?(?:cm|inches|feet|meters|units?|hours|minutes|square [a-z]+)\}", r"\\text{ kg}", gold)
    return [] if other == gold else [other]


WRONG: dict[str, Callable[[str], list[str]]] = {
    "another sign": _signs,
    "another digit": _digits,
    "a digit more": _one_digit_more,
    "another order": _order,
    "a part of it": _part,
    "a part more": lambda gold: [f"{gold}, 17"],
    "another bracket": _bracket,
    "another base": _base,
    "another unit": _unit,
}


def wrong_answers(golds: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    r"""Yield (change, gold, wrong answer) for every change, and for the next gold answer.

    `\frac12` is written `\frac{1}{2}` first: one digit more would make a factor of the last.
    """
    for gold, neighbour in zip(golds, (*golds[1:], golds[0]), strict=True):
        braced = re.sub(r"\\([dt]?)frac ?([0-9]) ?([0-9])", r"\\\1frac{\2}{\3}", gold)
        for name, change in WRONG.items():
            yield from ((name, gold, wrong) for wrong in change(braced))
        yield "a neighbour's gold", gold, neighbour
