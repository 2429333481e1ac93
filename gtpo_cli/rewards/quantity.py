r"""Read numbers as exact fractions, and labels of numbers: `5\text{ cm}`, `$5`, `5 dollars`, `45^\circ`.

A label is read only if nothing else follows the quantity: "5 cm" is a quantity with its unit, "5 or 6 cm" is not.
Pure standard library.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

_DECIMAL = r"(?:(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_RATIO = re.compile(rf"([+-]?) ?({_DECIMAL})(?: ?/ ?([+-]?{_DECIMAL}))?")
_ARGUMENT = rf"(?:\{{ ?([+-]?{_DECIMAL}) ?\}}|([0-9]))"
_LATEX_FRACTION = re.compile(rf"([+-]?) ?(?:([0-9]+) ?)?\\frac ?{_ARGUMENT} ?{_ARGUMENT}")
_REPEATED = r"\\(?:overline|bar) ?(?:\{ ?(?P<line>[0-9]+) ?\}|(?P<digit>[0-9]))|\((?P<brackets>[0-9]+)\)"
_DOTTED = r"\\dot ?\{?(?P<first>[0-9])\}?(?:(?P<between>[0-9]*) ?\\dot ?\{?(?P<last>[0-9])\}?)?"
_REPEATING = re.compile(rf"(?P<sign>[+-]?) ?(?P<before>[0-9]*)\.(?P<once>[0-9]*) ?(?:{_REPEATED}|{_DOTTED})")
_MIXED = re.compile(r"([+-]?)([0-9]+) ([0-9]+) ?/ ?([0-9]+)")

_PERCENT = re.compile(r"^(.*[^ ]) ?(?:%|(?<![A-Za-z])(?:percent|pct))$")
_DEGREES = re.compile(r"^(.*[^ ]) ?\^\\circ ?([CF]?)$")
_MONEY_BEFORE = re.compile(r"^([+-]?) ?\$ ?(?=[^ $])")
_MONEY_BEHIND = re.compile(r"(?<=[^ $]) ?\$$")
_ANGLE_FUNCTION = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
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
    "fahrenheit, kelvin, newton, joule, watt, volt, unit, square sq, cubic cu, per"
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
    """Return the text without its percent sign or word, and whether it had one."""
    match = _PERCENT.match(text)
    return (match[1], True) if match else (text, False)


def split_label(text: str) -> Quantity:
    """Split a quantity from its label: a currency sign, a degree sign, units, or any words after a plain number."""
    money: tuple[str, ...] = ()
    if "$" in text:
        bare = _MONEY_BEHIND.sub("", _MONEY_BEFORE.sub(r"\1", text))
        if bare != text and "$" not in bare:
            text, money = bare, ("dollar",)
    match = _DEGREES.match(text)
    if match and not _ANGLE_FUNCTION.search(match[1]):
        scale = {"C": ("celsius",), "F": ("fahrenheit",), "": ()}[match[2]]
        return Quantity(match[1], ("degree", *scale))
    words = re.sub(r"(?<=[0-9})\]])(?![eE][+-]?[0-9])(?=[A-Za-z])", " ", _POWER_WORDS.sub(_power_before, text)).split(
        " "
    )
    start = len(words)
    label: tuple[str, ...] = ()
    while start > 1 and (unit := _unit(words[start - 1])):
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


def _unit(word: str) -> tuple[str, ...]:
    """Return the names of a unit word, including `cm^2` and `km/hour`; () for any other word."""
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
