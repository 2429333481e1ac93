r"""Read numbers as exact fractions, and labels of numbers: `5\text{ cm}`, `$5`, `5 dollars`, `45^\circ`.

A label is read only if nothing else follows the quantity: "5 cm" is a quantity with its unit, "5 or 6 cm" is not.

Clock times (`8:30`, `4:30 p.m.`) and ratios (`3:2`, `3 to 2`, `1:2:3`) are compared here too. `8:30` may be either.
Two answers that may both be times are compared as times, and a time equals only that time. A ratio in lowest terms may
be written as a fraction (`7:32` is 7/32, `8:30` is not 4/15). Pure standard library.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from fractions import Fraction

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


_DECIMAL = r"(?:(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_RATIO = re.compile(rf"([+-]?) ?({_DECIMAL})(?: ?/ ?([+-]?{_DECIMAL}))?")
_ARGUMENT = rf"(?:\{{ ?([+-]?{_DECIMAL}) ?\}}|([0-9]))"
_LATEX_FRACTION = re.compile(rf"([+-]?) ?(?:([0-9]+) ?)?\\frac ?{_ARGUMENT} ?{_ARGUMENT}")
_REPEATED = r"\\(?:overline|bar) ?(?:\{ ?(?P<line>[0-9]+) ?\}|(?P<digit>[0-9]))|\((?P<brackets>[0-9]+)\)"
_DOTTED = r"\\dot ?\{?(?P<first>[0-9])\}?(?:(?P<between>[0-9]*) ?\\dot ?\{?(?P<last>[0-9])\}?)?"
_REPEATING = re.compile(rf"(?P<sign>[+-]?) ?(?P<before>[0-9]*)\.(?P<once>[0-9]*) ?(?:{_REPEATED}|{_DOTTED})")
_MIXED = re.compile(r"([+-]?)([0-9]+) ([0-9]+) ?/ ?([0-9]+)")

_PERCENT = re.compile(r"^(.*[^ ]) ?%$")
_DEGREES = re.compile(r"^(.*[^ ]) ?\^\\circ ?([CF]?)$")
_MONEY_BEFORE = re.compile(r"^([+-]?) ?\$ ?(?=[^ $])")
_MONEY_BEHIND = re.compile(r"(?<=[^ $]) ?\$$")
_CURRENCIES = {"€": "euro", "£": "sterling", "¥": "yuan", "₹": "rupee", "¢": "cent"}
_CURRENCY = re.compile(r"(?P<before>[+-]?) ?(?P<first>[€£¥₹])? ?(?P<value>[0-9.,]+) ?(?P<last>[€£¥₹¢])?")
_ANGLE_FUNCTION = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_RATE = re.compile(r"(?<=[0-9]) ?/ ?([A-Za-z]{2,}\.?)$")  # 12/hour
_POWERS = {"2": ("square",), "3": ("cubic",)}
_POWER_WORD = {"squared": "square", "cubed": "cubic"}
_POWER_WORDS = re.compile(r"(?<![A-Za-z])([A-Za-z]+\.?) (squared|cubed)(?![A-Za-z])", re.IGNORECASE)
_SHORT = {"m": "meter", "s": "second", "h": "hour", "g": "gram", "L": "liter"}

# Unit words, each with its synonyms. In a predicted answer only these words are labels.
_UNIT_NAMES = (
    "mm millimeter millimetre, cm centimeter centimetre, m meter metre, km kilometer kilometre, in inch inches, "
    "ft foot feet, yd yard, mi mile, mg milligram, g gm gram, kg kilogram, lb lbs pound, oz ounce, ton tonne, "
    "second sec, minute min, hour hr hrs, day, week, month, year yr yrs, dollar usd, cent, euro eur, yuan, rupee, "
    "ml milliliter millilitre, liter litre, gallon gal, quart, pint, acre, hectare, degree deg, radian rad, celsius, "
    "fahrenheit, kelvin, newton, joule, watt, volt, unit, square sq, cubic cu, per, each, more, total"
)
_UNITS: dict[str, tuple[str, ...]] = {
    word + plural: (words.split()[0],)
    for words in _UNIT_NAMES.split(",")
    for word in words.split()
    for plural in ("", "s")
    if len(word) > 1  # single letters are variables
} | {"mph": ("mi", "per", "hour"), "kph": ("km", "per", "hour")}

# Words after a number that are part of its value or of a sentence, and so never a label.
_NO_LABEL = frozenset(
    "hundred hundreds thousand thousands million millions billion billions trillion trillions dozen dozens pair pairs "
    "percent pct pi half halves third thirds quarter quarters tenth tenths hundredth hundredths thousandth thousandths "
    "squared cubed factorial choose mod times plus minus and or to of than sqrt sin cos tan log ln exp infty".split()
)
_LABEL_WORD = re.compile(r"[A-Za-z][A-Za-z'-]{2,}\.?")  # shorter ones may be variables


@dataclass(frozen=True, slots=True)
class Quantity:
    """An answer without its label. `known`: whether every word of the label is a unit."""

    value: str
    label: tuple[str, ...] = ()
    known: bool = True


@functools.lru_cache(maxsize=4096)
def exact_number(text: str) -> Fraction | None:
    r"""Return the number that the whole text writes, or None.

    Examples: `1,319`, `-3`, `.5`, `36/2`, `1e3`, `\frac{1}{2}`, `2 1/2`, `0.1\overline{6}`. Thousands commas must be
    well-formed: `1,2` is not a number. Only ASCII digits count. Exponents have at most three digits, so the work is
    bounded by the length of the text.
    """
    if match := _RATIO.fullmatch(text):
        sign, numerator, denominator = match.groups()
        return _fraction(sign, "0", numerator, denominator or "1")
    if match := _LATEX_FRACTION.fullmatch(text):
        sign, whole, *arguments = match.groups()
        numerator, denominator = arguments[0] or arguments[1], arguments[2] or arguments[3]
        if whole and (numerator[0] in "+-" or denominator[0] in "+-"):
            return None  # 2\frac{-1}{2} is no mixed number
        return _fraction(sign, whole or "0", numerator, denominator)
    if match := _MIXED.fullmatch(text):
        return _fraction(*match.groups())
    if match := _REPEATING.fullmatch(text):
        return _repeating(match)
    return None


def _repeating(match: re.Match[str]) -> Fraction:
    dotted = (match["first"] or "") + (match["between"] or "") + (match["last"] or "")
    repeated = match["line"] or match["digit"] or match["brackets"] or dotted
    whole, once = match["before"] or "0", match["once"]
    value = (int(whole + once) + Fraction(int(repeated), int("9" * len(repeated)))) * Fraction(f"1e-{len(once)}")
    return -value if match["sign"] == "-" else value


def _fraction(sign: str, whole: str, numerator: str, denominator: str) -> Fraction | None:
    below = Fraction(denominator.replace(",", ""))
    if below == 0:
        return None
    part = Fraction(numerator.replace(",", "")) / below
    if int(whole) and part >= 1:
        return None  # 17\frac{1}{1} is no mixed number
    size = int(whole) + part
    return -size if sign == "-" else size


_E_NOTATION = re.compile(r"(?<![0-9A-Za-z.\\])([0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE]([+-]?)([0-9]{1,3})(?![0-9A-Za-z.^!])")
_EULERS_NUMBER = re.compile(r"(?<![A-Za-z\\])e(?![A-Za-z])")


def in_powers_of_ten(text: str, *, beside: str = "") -> str:
    r"""Rewrite `5e3` as `5 \cdot 10^{3}`.

    `beside`: the text to compare with. If it has Euler's number, `2e+3` means 2e + 3, and `5e3` stays unchanged.
    """
    if not _E_NOTATION.search(text):
        return text
    if _EULERS_NUMBER.search(_E_NOTATION.sub("", beside)):
        return _E_NOTATION.sub(lambda match: rf"{match[1]} e {match[2]} {match[3]}" if match[2] else match[0], text)
    return _E_NOTATION.sub(lambda match: rf"{match[1]} \cdot 10^{{{match[2].strip('+')}{match[3]}}}", text)


def split_percent(text: str) -> tuple[str, bool]:
    """Return the text without its percent sign, and whether it had one."""
    match = _PERCENT.match(text)
    return (match[1], True) if match else (text, False)


def split_label(text: str) -> Quantity:
    """Split a quantity from its label: a currency sign, a degree sign, units, or any words after a plain number."""
    money: tuple[str, ...] = ()
    if (sign := _CURRENCY.fullmatch(text)) and bool(sign["first"]) != bool(sign["last"]):
        return Quantity(sign["before"] + sign["value"], (_CURRENCIES[sign["first"] or sign["last"]],))
    if "$" in text:
        bare = _MONEY_BEHIND.sub("", _MONEY_BEFORE.sub(r"\1", text))
        if bare != text and "$" not in bare:
            text, money = bare, ("dollar",)
    match = _DEGREES.match(text)
    if match and not _ANGLE_FUNCTION.search(match[1]):
        scale = {"C": ("celsius",), "F": ("fahrenheit",), "": ()}[match[2]]
        return Quantity(match[1], ("degree", *scale))
    spaced = _RATE.sub(lambda match: f" per {match[1]}" if _unit(match[1]) else match[0], text)
    spaced = _POWER_WORDS.sub(_power_before, spaced)
    words = re.sub(r"(?<=[0-9})\]])(?![eE][+-]?[0-9])(?=[A-Za-z])", " ", spaced).split(" ")
    start = len(words)
    label: tuple[str, ...] = ()
    while start > 1 and (unit := _unit(words[start - 1], behind=words[start - 2])):
        start -= 1
        label = unit + label
    value = " ".join(words[:start])
    if start < len(words) and re.search(r"[0-9\\]", value) and label[-1] != "per":
        return Quantity(value, label if label == money else money + label)
    if money:
        return Quantity(text, money)
    return _any_words(text.split(" ")) or Quantity(text)


def _power_before(match: re.Match[str]) -> str:
    """Rewrite `meters squared` as `square meters`."""
    return f"{_POWER_WORD[match[2].lower()]} {match[1]}" if _unit(match[1]) else match[0]


def _unit(word: str, *, behind: str = "") -> tuple[str, ...]:
    """Return the names of a unit word, including `cm^2` and `km/hour`; () for any other word not behind `per`."""
    if behind.lower() == "per" and _LABEL_WORD.fullmatch(word) and word.lower() not in _UNITS:
        return (word.lower(),)
    names: tuple[str, ...] = ()
    parts = word.split("/")
    for index, part in enumerate(parts):
        base, _, power = part.partition("^")
        unit = _UNITS.get(base.lower().rstrip("."))
        if len(parts) == 2 and base in _SHORT:  # m/s; a single letter alone is a variable
            unit = _UNITS[_SHORT[base]]
        prefix = _POWERS.get(power.strip("{}"), ()) if power else ()
        if unit is None or (power and not prefix):
            return ()
        names += (("per",) if index else ()) + prefix + unit
    return names


def _any_words(words: list[str]) -> Quantity | None:
    start = len(words)
    while start > 1 and _LABEL_WORD.fullmatch(words[start - 1]):
        start -= 1
    label = tuple(word.lower().rstrip(".") for word in words[start:])
    value = " ".join(words[:start])
    if not label or exact_number(value) is None or not _NO_LABEL.isdisjoint(label):
        return None
    return Quantity(value, label, known=False)
