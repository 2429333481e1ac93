"""Ways in which the same answer is commonly written. Each gives the text back unchanged where it does not apply."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

_FRACTION = re.compile(r"-?\\frac\{(\d+)\}\{(\d+)\}")
_INTEGER = re.compile(r"(?<![0-9_^.{,])[0-9]{4,9}(?![0-9.])")
_UNIT = re.compile(r"(?<=[0-9}])\\(?:text|mbox)\{ ?[a-z ]+\}$")
_ONLY_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def as_decimal(gold: str) -> str:
    r"""`\frac{1}{2}` -> `0.5`, where the decimal ends within four places."""
    match = _FRACTION.fullmatch(gold)
    if match is None or int(match[2]) == 0:
        return gold
    value = Fraction(int(match[1]), int(match[2]))
    if (value * 10_000).denominator != 1:
        return gold
    return ("-" if gold.startswith("-") else "") + f"{float(value):.4f}".rstrip("0").rstrip(".")


def as_slash(gold: str) -> str:
    r"""`\frac{1}{2}` -> `1/2`."""
    match = _FRACTION.fullmatch(gold)
    return gold if match is None else ("-" if gold.startswith("-") else "") + f"{match[1]}/{match[2]}"


def without_braces(gold: str) -> str:
    r"""`\frac{1}{2}` -> `\frac12`."""
    return re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", gold)


def with_thousands(gold: str) -> str:
    """`1319` -> `1,319`; not in coordinates: (3,281,3280) is a triple."""
    return gold if "," in gold else _INTEGER.sub(lambda match: f"{int(match[0]):,}", gold)


def without_thousands(gold: str) -> str:
    r"""`1,319`, `1,\!319` -> `1319`, where the whole answer is that number."""
    plain = gold.replace(r"\!", "")
    return plain.replace(",", "") if re.fullmatch(r"-?\$?\d{1,3}(?:,\d{3})+(?:\.\d+)?", plain) else gold


def without_unit(gold: str) -> str:
    r"""`5\text{ cm}` -> `5`."""
    return _UNIT.sub("", gold).strip()


def without_text(gold: str) -> str:
    r"""`\text{Monday}` -> `Monday`."""
    match = _ONLY_TEXT.fullmatch(gold)
    return gold if match is None else match[1]


def without_signs(gold: str) -> str:
    r"""`25\%` -> `25`, `\$5` -> `5`."""
    return gold if "=" in gold or r"\approx" in gold else re.sub(r"\\[$%]", "", gold)


def with_percent_sign(gold: str) -> str:
    r"""`25\%` -> `25%`."""
    return gold.replace(r"\%", "%")


def without_name(gold: str) -> str:
    """`x=5` -> `5`."""
    return re.sub(r"^[a-z] ?= ?", "", gold)


REWRITINGS: dict[str, Callable[[str], str]] = {
    "dfrac": lambda gold: gold.replace(r"\frac", r"\dfrac"),
    "tfrac": lambda gold: gold.replace(r"\frac", r"\tfrac"),
    "no braces": without_braces,
    "decimal": as_decimal,
    "slash": as_slash,
    "thousands": with_thousands,
    "no thousands": without_thousands,
    "no unit": without_unit,
    "no text": without_text,
    "no dollar or percent sign": without_signs,
    "percent sign": with_percent_sign,
    "math delimiters": lambda gold: f"${gold}$",
    "boxed": lambda gold: rf"\boxed{{{gold}}}",
    "no left": lambda gold: re.sub(r"\\(?:left|right)(?![A-Za-z])", "", gold),
    "no name": without_name,
}
