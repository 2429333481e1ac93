r"""Tell worked-out answers from copies of the question: `8 \div 2 \div 2 + 6` equals 8 but does not answer itself.

If the gold answer is a number, the answer must be one. The question's own text, however it is spaced or bracketed, is
never an answer unless it is a number or the gold answer's own text. A fraction, ratio, power of ten or repeating
decimal from the question counts only if the gold answer has the same digits: `\frac{16}{20}` is not `\frac{4}{5}`
simplified. A copy with a change that needs algebra (`(x+5)^2+0`) is not recognised. Pure standard library.
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
_WRITTEN_OUT = re.compile(r"/|\\frac|:| to |\\(?:overline|bar|dot)(?![A-Za-z])|\.[0-9]*\(|\^", re.IGNORECASE)
_BRACKETS = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])|\\?[{}]|[()\[\]$]|\\[()\[\],;:! ]")
_TIMES = re.compile(r"\\(?:cdot|times|ast)(?![A-Za-z])|\*")


def is_worked_out(gold: str, predicted: str, question: str) -> bool:
    """Return whether `predicted`, which algebra may find equal to `gold`, is an answer. Takes canonical parts."""
    if gold == predicted:
        return True
    if exact_number(split_percent(gold)[0]) is not None:
        predicted = split_percent(predicted)[0]
        return _is_number(predicted) and (exact_number(predicted) is not None or not stands_in(question, predicted))
    return _letters(gold) == _letters(predicted) or not stands_in(question, predicted)


def is_copied_number(gold: str, predicted: str, question: str) -> bool:
    """Return whether `predicted`, equal to the number `gold`, is a fraction, ratio or power of ten from the question.

    It is not if the gold answer has the same digits.
    """
    if re.findall("[0-9]+", gold) == re.findall("[0-9]+", predicted) or not _WRITTEN_OUT.search(predicted):
        return False
    return stands_in(question, predicted.lstrip("+- "))


def stands_in(question: str, text: str) -> bool:
    """Return whether the question contains this text, ignoring spaces, brackets and multiplication signs."""
    letters = _letters(text)
    if not letters:
        return False
    before, after = r"(?<![0-9.])" if letters[0].isdigit() else "", r"(?![0-9])" if letters[-1].isdigit() else ""
    if letters[0].isalpha():
        before = r"(?<![A-Za-z\\])"
    if letters[-1].isalpha():
        after = r"(?![A-Za-z])"
    pattern = before + r"\s*".join(map(re.escape, letters)) + after
    return re.search(pattern, _searchable(question[:_SEARCHED])) is not None


def _is_number(text: str) -> bool:
    text = text.lstrip("+- ")
    return exact_number(text) is not None or _SCIENTIFIC.fullmatch(text) is not None


def _letters(text: str) -> str:
    return "".join(_searchable(text).split())


@functools.lru_cache(maxsize=256)
def _searchable(text: str) -> str:
    text = spelled(" ".join(text.split())).casefold()
    return _TIMES.sub(" ", _BRACKETS.sub(" ", re.sub(r"\\div(?![a-z])", "/", text)))
