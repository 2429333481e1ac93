"""Formulas copied out of a question, with changes that change nothing. Used by test_copied.py and grading_rates.py."""

from __future__ import annotations

import re
from collections.abc import Callable

_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)


def formulas(question: str) -> list[str]:
    """Every formula of a question as it stands, and the sides of every equation."""
    found = []
    for match in _FORMULA.finditer(question.replace(r"\$", "\0")):
        formula = next(group for group in match.groups() if group is not None).replace("\0", r"\$").strip()
        sides = [side.strip() for side in re.split(r"(?<![<>!:\\])=", formula)]
        found += [formula, *sides, *(side.rstrip(".,;: ") for side in (formula, *sides))]
    return [formula for formula in dict.fromkeys(found) if formula]


def is_own_text_or_number(gold: str, formula: str) -> bool:
    """Is the formula the gold answer as it is written, but for its brackets and signs around a number?"""

    def bare(text: str) -> str:
        text = re.sub(r"\\left|\\right|\\text|\\[,!]|[\s${}().,%]|\\%|\\\$", "", text.replace("dfrac", "frac"))
        return text.rpartition("=")[2].casefold()

    return bare(gold) == bare(formula)


THE_SAME_TEXT = ("X", "(X)", r"\left(X\right)", "spaced")  # the other changes need algebra
CHANGES: dict[str, Callable[[str], list[str]]] = {
    "X": lambda x: [x],
    "(X)": lambda x: [f"({x})", f"(({x}))", f"{{{x}}}", f"[{x}]"],
    r"\left(X\right)": lambda x: [rf"\left({x}\right)", rf"\left[{x}\right]", rf"\bigl({x}\bigr)"],
    "spaced": lambda x: [rf"\displaystyle {x}", rf"{x}\,\,", x if "\\" in x else " ".join(x)],
    "X+0": lambda x: [f"{x}+0", f"({x})+0", f"{x}+0.0"],
    "1*X": lambda x: [f"1*{x}", f"1*({x})", f"1({x})"],
    "X^1": lambda x: [f"{x}^1", f"({x})^1", f"({x})^{{1}}", rf"\left({x}\right)^1"],
}
