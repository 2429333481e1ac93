r"""Has an answer been worked out, or is it what was asked? `8 \div 2 \div 2 + 6` equals 8 and is no answer to itself.

A gold answer that is a number asks for a number; one without variables asks for no function it does not have itself
(`\cos 30^\circ` for `\frac{\sqrt{3}}{2}`). Whatever the gold answer is, a formula that stands in the question is no
answer, unless it is the gold answer's own text or a number; and of numbers, a fraction, ratio or repeating decimal out
of the question only where the gold answer is written with the same digits: `\frac{16}{20}` is not `\frac{4}{5}`
simplified. Pure standard library.
"""

from __future__ import annotations

import functools
import re

from gtpo_cli.rewards.normalize import spelled
from gtpo_cli.rewards.quantity import exact_number, split_percent

_SEARCHED = 20_000  # characters of a question; the longest of MATH has 4,000
_SCIENTIFIC = re.compile(
    r"(?:[0-9]+(?:\.[0-9]+)? ?(?:\\times(?![A-Za-z])|\\cdot(?![A-Za-z])|\*) ?)?10 ?\^ ?(?:\{ ?[+-]?[0-9]+ ?\}|[0-9])"
)
_FRACTION = re.compile(r"/|\\frac|:| to |\\(?:overline|bar|dot)(?![A-Za-z])|\.[0-9]*\(", re.IGNORECASE)  # or a ratio
_FUNCTION = re.compile(
    r"\\(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|lg|exp|binom|lfloor|lceil|gcd|lcm|max|min|sum|prod|int|lim|det"
    r"|begin ?\{vmatrix\})(?![A-Za-z])|!|\||(?<![\\A-Za-z])(?:sin|cos|tan|log|ln|exp|max|min|gcd|lcm)(?![A-Za-z])"
)
_VARIABLE = re.compile(r"(?<![\\A-Za-z])(?![ei](?![A-Za-z]))[A-Za-z]")
_TIMES = re.compile(r"\\(?:cdot|times|ast)(?![A-Za-z])|\*")
_FORMULA = re.compile(r"\$\$?([^$]+)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_BETWEEN = r"[\s{}]*"


def is_worked_out(gold: str, predicted: str, question: str) -> bool:
    """May `predicted`, which equals `gold` if algebra says so, be an answer? For parts in canonical spelling."""
    if gold == predicted:
        return True
    if exact_number(split_percent(gold)[0]) is not None:
        predicted = split_percent(predicted)[0]
        return _is_number(predicted) and (exact_number(predicted) is not None or not stands_in(question, predicted))
    if _FUNCTION.search(predicted) and not _FUNCTION.search(gold) and not _VARIABLE.search(gold):
        return False
    if _letters(gold) == _letters(predicted):
        return True
    return not stands_in(question, predicted) and "".join(sorted(_letters(predicted))) not in _rearranged(question)


def is_copied_fraction(gold: str, predicted: str, question: str) -> bool:
    """Is `predicted`, equal to the number `gold`, a fraction out of the question, in other terms than the gold's?"""
    if not _FRACTION.search(predicted) or re.findall("[0-9]+", gold) == re.findall("[0-9]+", predicted):
        return False
    return stands_in(question, predicted)


def stands_in(question: str, text: str) -> bool:
    """Does the question hold this text, whatever the spaces, braces and signs of multiplication?"""
    letters = _letters(text)
    if not letters:
        return False
    before, after = r"(?<![0-9.])" if letters[0].isdigit() else "", r"(?![0-9])" if letters[-1].isdigit() else ""
    if letters[0].isalpha():
        before = r"(?<![A-Za-z\\])"
    if letters[-1].isalpha():
        after = r"(?![A-Za-z])"
    pattern = before + _BETWEEN.join(map(re.escape, letters)) + after
    return re.search(pattern, _searchable(question[:_SEARCHED])) is not None


@functools.lru_cache(maxsize=256)
def _rearranged(question: str) -> frozenset[str]:
    """The sorted letters of every formula and side of an equation: (5+x)^2 is a copy of (x+5)^2 all the same."""
    formulas = [match[1] or match[2] or match[3] for match in _FORMULA.finditer(question[:_SEARCHED])]
    sides = {side for formula in formulas for side in (formula, *formula.split("="))}
    return frozenset("".join(sorted(_letters(side.strip(" .,;:")))) for side in sides) - {""}


def _is_number(text: str) -> bool:
    text = text.lstrip("+- ")
    return exact_number(text) is not None or _SCIENTIFIC.fullmatch(text) is not None


def _letters(text: str) -> str:
    return re.sub(r"[\s{}$]", "", _searchable(text))


@functools.lru_cache(maxsize=256)
def _searchable(text: str) -> str:
    text = spelled(" ".join(text.split())).casefold()
    return _TIMES.sub(" ", re.sub(r"\\div(?![a-z])", "/", text))
