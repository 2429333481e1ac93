"""Compare clock times (`8:30`, `4:30 p.m.`) and ratios (`3:2`, `3 to 2`, `1:2:3`).

`8:30` may be either. Two answers that may both be times are compared as times, and a time equals only that time. A
ratio in lowest terms may be written as a fraction (`7:32` is 7/32, `8:30` is not 4/15). Pure standard library.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from gtpo_cli.rewards.quantity import exact_number

_TIME = re.compile(
    r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-5][0-9])(?::(?P<second>[0-5][0-9]))?)?"
    r" ?(?P<half>[ap]\.? ?m\.?|noon|midnight)?",
    re.IGNORECASE,
)
_NAMED = {"noon": "12:00 noon", "midnight": "12:00 midnight"}
_COLON = re.compile(r" ?: ?| to ", re.IGNORECASE)
_CANDIDATE = re.compile(r":| to |[0-9] ?[ap]\.? ?m|noon|midnight", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Time:
    """A clock time. `half`: "a" before noon, "p" after it, "" if not given."""

    hour: int
    minute: int
    second: int
    half: str

    def of_day(self) -> tuple[int, int, int]:
        hour = self.hour % 12 + (12 if self.half == "p" else 0) if self.half else self.hour
        return hour, self.minute, self.second


def same_time_or_ratio(gold: str, predicted: str) -> bool | None:
    """Return whether two answers are the same time or ratio; None if neither is a time or a ratio of numbers."""
    if not _CANDIDATE.search(gold) and not _CANDIDATE.search(predicted):
        return None
    gold_time, time = _time(gold), _time(predicted)
    if gold_time and time:
        return _same_time(gold_time, time)
    if any(one and one.half for one in (gold_time, time)):
        return False
    gold_terms, terms = _terms(gold), _terms(predicted)
    if len(gold_terms) < 2 and len(terms) < 2:
        return None
    if not gold_terms or not terms or 0 in gold_terms[1:] + terms[1:]:
        return gold.casefold() == predicted.casefold()
    if (gold_time or time) and not _in_lowest_terms(gold_terms if gold_time else terms):
        return False
    return _shares(gold_terms) == _shares(terms)


def _time(text: str) -> _Time | None:
    match = _TIME.fullmatch(_NAMED.get(text.casefold(), text))
    if match is None or int(match["hour"]) > 24 or not (match["minute"] or match["half"]):
        return None
    half = {"n": "p", "m": "a"}.get(first := (match["half"] or "").casefold()[:1], first)  # noon, midnight
    return _Time(int(match["hour"]), int(match["minute"] or 0), int(match["second"] or 0), half)


def _same_time(gold: _Time, time: _Time) -> bool:
    if gold.of_day() == time.of_day():
        return True
    written = (gold.hour, gold.minute, gold.second) == (time.hour, time.minute, time.second)
    return written and not (gold.half and time.half)  # 4:30 p.m. and 4:30


def _terms(text: str) -> tuple[Fraction, ...]:
    """Return the numbers of a ratio; one for a plain number, none for anything else."""
    terms = [exact_number(term) for term in _COLON.split(text)]
    return tuple(term for term in terms if term is not None) if None not in terms else ()


def _shares(terms: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """Return the terms as multiples of the last; for a number, the number and 1."""
    return (*terms, Fraction(1)) if len(terms) == 1 else tuple(term / terms[-1] for term in terms)


def _in_lowest_terms(terms: tuple[Fraction, ...]) -> bool:
    return all(term.denominator == 1 for term in terms) and math.gcd(*(term.numerator for term in terms)) == 1
