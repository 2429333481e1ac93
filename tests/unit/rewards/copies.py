"""Formulas copied out of a question, with changes that change nothing. Used by test_copied.py and grading_rates.py."""

from __future__ import annotations

import re
from collections.abc import Callable

_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_TERMS = re.compile(r"[^-+(){}\[\]\\^_=<>|]+(?:[-+][^-+(){}\[\]\\^_=<>|]+)+")


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


def _other_letters(formula: str) -> list[str]:
    """Each letter in turn written as another: a bound variable may be any."""
    letters = sorted(set(re.findall(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])", formula)))
    return [re.sub(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", "u", formula) for letter in letters]


def _turned(formula: str) -> list[str]:
    """The first sum with its terms in the other order: a + b, b + a."""
    match = _TERMS.search(formula)
    if match is None:
        return []
    terms = re.findall(r"[-+]?[^-+]+", match[0])
    swapped = "+".join(reversed([term.strip().removeprefix("+") for term in terms])).replace("+-", "-")
    return [formula[: match.start()] + swapped + formula[match.end() :]]


CHANGES: dict[str, Callable[[str], list[str]]] = {
    "X": lambda x: [x],
    "X+0": lambda x: [f"{x}+0", f"({x})+0", f"{x}+0.0"],
    "0+X": lambda x: [f"0+{x}", f"0+({x})"],
    r"1\cdot X": lambda x: [rf"1 \cdot {x}", rf"1\cdot({x})"],
    r"1\times X": lambda x: [rf"1 \times {x}", rf"1\times({x})"],
    "1*X": lambda x: [f"1*{x}", f"1*({x})", f"1({x})"],
    "X^1": lambda x: [f"{x}^1", f"({x})^1", f"({x})^{{1}}", rf"\left({x}\right)^1"],
    "(X)": lambda x: [f"({x})", f"(({x}))", f"{{{x}}}", f"[{x}]"],
    r"\left(X\right)": lambda x: [rf"\left({x}\right)", rf"\left[{x}\right]", rf"\bigl({x}\bigr)"],
    "renamed variable": _other_letters,
    "terms in another order": _turned,
    "X-0": lambda x: [f"{x}-0", f"({x})-0"],
    "X/1": lambda x: [f"{x}/1", f"({x})/1", rf"{x}\div 1"],
    r"\frac{X}{1}": lambda x: [rf"\frac{{{x}}}{{1}}", rf"\dfrac{{{x}}}{{1}}"],
    "--X": lambda x: [f"--{x}", f"-(-({x}))", f"+({x})"],
    "0-(-X)": lambda x: [f"0-(-({x}))", f"0-(-{x})"],
    r"X\cdot 1": lambda x: [rf"{x}\cdot 1", rf"({x})\cdot 1", f"({x})(1)"],
    r"X\cdot x^0": lambda x: [rf"{x}\cdot x^0", rf"({x})\cdot x^0"],
    "X+(1-1)": lambda x: [f"{x}+(1-1)", f"{x}+1-1", f"{x}+x-x"],
    "2X/2": lambda x: [f"2({x})/2", rf"\frac{{2({x})}}{{2}}", rf"\frac{{2{x}}}{{2}}", rf"\frac{{x({x})}}{{x}}"],
    "3X-2X": lambda x: [f"3({x})-2({x})", rf"\frac{{{x}}}{{2}}+\frac{{{x}}}{{2}}"],
    r"\sqrt{X}^2": lambda x: [rf"\left(\sqrt{{{x}}}\right)^2", rf"\sqrt{{({x})^2}}", f"1/(1/({x}))"],
    "y = X+0": lambda x: [f"y = {x}+0", f"y = ({x})"],
    "style": lambda x: [
        rf"\displaystyle {x}",
        rf"{x}\,\,",
        x.replace(r"\frac", r"\dfrac") + "+0",
        " ".join(x).replace(r"\ ", "\\") if "\\" not in x else x,
        re.sub(r"[pbv]matrix", "bmatrix", x) if "pmatrix" in x else x,
        x.replace(r"\begin{pmatrix}", r"\left(\begin{array}{cc}").replace(r"\end{pmatrix}", r"\end{array}\right)"),
    ],
    "several": lambda x: [rf"\frac{{1\cdot({x})^1+0}}{{1}}", f"0+(({x})/1)^1"],
}
