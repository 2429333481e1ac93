r"""Tell worked-out answers from copies of the question: `8 \div 2 \div 2 + 6` equals 8 but does not answer itself.

If the gold answer is a number, the answer must be one. If it has no variables, the answer may not use a function that
the gold answer does not have (`\cos 30^\circ` for `\frac{\sqrt{3}}{2}`). A formula from the question is never an answer
unless it is a number or the gold answer's own text. A fraction, ratio or repeating decimal from the question counts
only if the gold answer has the same digits: `\frac{16}{20}` is not `\frac{4}{5}` simplified. Derivatives, integrals,
sums, products, limits, determinants, and sums or products of matrices count only if the gold answer has them too.

Trivial changes do not make a copy an answer. A formula of the question with the gold answer's value but another form
may not occur anywhere in the answer (`(x+5)^2+0`, `\frac{2(5+x)^2}{2}`). Formulas are compared as trees (`formula.py`).
Pure standard library.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator

from gtpo_cli.rewards.formula import read_formula
from gtpo_cli.rewards.normalize import is_oversized, spelled
from gtpo_cli.rewards.quantity import REPEATING, exact_number, in_powers_of_ten, split_percent
from gtpo_cli.rewards.trees import Tree, collected, holds, is_plain_number, kind, minus, names, parts, renamed, work

_SEARCHED = 20_000  # characters of a question; the longest of MATH has 4,000
_MOST_VALUES = 4  # formulas of a question that are evaluated for one reading of an answer
_SCIENTIFIC = re.compile(
    r"(?:[0-9]+(?:\.[0-9]+)? ?(?:\\times(?![A-Za-z])|\\cdot(?![A-Za-z])|\*) ?)?10 ?\^ ?(?:\{ ?[+-]?[0-9]+ ?\}|[0-9])"
)
_FRACTION = re.compile(r"/|\\frac|:| to |\\(?:overline|bar|dot)(?![A-Za-z])|\.[0-9]*\(", re.IGNORECASE)  # or a ratio
_FUNCTION = re.compile(
    r"\\(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|lg|exp|binom|lfloor|lceil|gcd|lcm|max|min|sum|prod|int|lim|det"
    r"|begin ?\{vmatrix\})(?![A-Za-z])|!|\||(?<![\\A-Za-z])(?:sin|cos|tan|log|ln|exp|max|min|gcd|lcm)(?![A-Za-z])"
)
_COLON = re.compile(r" ?: ?| to ", re.IGNORECASE)
_VARIABLE = re.compile(r"(?<![\\A-Za-z])(?![ei](?![A-Za-z]))[A-Za-z]")
_TIMES = re.compile(r"\\(?:cdot|times|ast)(?![A-Za-z])|\*")
_FORMULA = re.compile(r"\$\$?([^$]+)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_PROSE = re.compile(
    r"(?<![\\A-Za-z])(?!(?:sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|pi)(?![A-Za-z]))[A-Za-z]{2,}|[.,;:?!](?!\S)"
)
_DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|$)", re.DOTALL)  # the code of a figure
_ARTICLE = re.compile(r"(?<!\S)[aI](?!\S)")
_SIGN = re.compile(r"[-+*/^=\\!(|<>]")
_BETWEEN = r"[\s{}]*"


def is_worked_out(gold: str, predicted: str, question: str) -> bool:
    """Return whether `predicted`, which algebra may find equal to `gold`, is an answer. Takes canonical parts."""
    if gold == predicted:
        return True
    if exact_number(split_percent(gold)[0]) is not None:
        predicted = split_percent(predicted)[0]
        return _is_number(predicted) and (exact_number(predicted) is not None or not stands_in(question, predicted))
    if _FUNCTION.search(predicted) and not _FUNCTION.search(gold) and not _VARIABLE.search(gold):
        return False
    if _letters(gold) == _letters(predicted):
        return True
    return not stands_in(question, predicted) and _is_evaluated(gold, predicted)


def _is_evaluated(gold: str, predicted: str) -> bool:
    """Return whether the answer has no unevaluated operation that the gold answer lacks."""
    answer, wanted = _tree(predicted), _tree(gold)
    undone, allowed = work(answer), work(wanted)
    matrices = undone.pop("matrix", 0)
    if matrices > max(1, allowed["matrix"]) or not undone.keys() <= allowed.keys():
        return False
    if not kind(answer) == kind(wanted) == "matrix":
        return True
    entries = ([entry for row in matrix[1:] for entry in row[1:]] for matrix in (wanted, answer))
    return all(is_plain_number(entry) or not is_plain_number(asked) for asked, entry in zip(*entries, strict=False))


def holds_copy(gold: str, predicted: str, question: str, is_worth_it: Callable[[str], bool]) -> bool:
    """Return whether `predicted` contains a formula of the question with the gold answer's value but another form.

    `is_worth_it(formula)` tells whether a formula has that value; it is called only for the few in the answer. A letter
    that the gold answer lacks may be any other.
    """
    answer, wanted = _tree(_COLON.sub("/", predicted)), _tree(gold)
    if answer == wanted:
        return False
    kept = names(wanted)
    copied: dict[str, None] = {}
    for version in (answer, collected(answer)):  # the second one cancels terms such as +A-A
        inside = (text for tree, text in _trees_of(question) if _stands_inside(tree, renamed(version, kept), wanted))
        copied |= dict.fromkeys(itertools.islice(inside, _MOST_VALUES))
    return any(map(is_worth_it, copied))


def _stands_inside(formula: Tree, answer: Tree, wanted: Tree) -> bool:
    kept = names(wanted)
    formula = renamed(formula, kept)
    # the square of a sum is read as that of its negative
    return formula != wanted and kept <= names(formula) and (holds(answer, formula) or holds(answer, minus(formula)))


def is_formula_of(question: str, text: str) -> bool:
    """Return whether the text is a formula of the question or a part of one, in any order, brackets and spacing."""
    tree = _tree(text)
    return any(tree == formula for formula, _ in _trees_of(question))


@functools.lru_cache(maxsize=256)
def _tree(text: str) -> Tree:
    return read_formula(text)


@functools.lru_cache(maxsize=256)
def _trees_of(question: str) -> tuple[tuple[Tree, str], ...]:
    """Return all formulas of a question and their parts, except single names and numbers, the largest first."""
    found: dict[Tree, str] = {}
    for formula in _formulas(question[:_SEARCHED].replace(r"\$", " ")):
        text = in_powers_of_ten(spelled(" ".join(formula.split()).strip(" .,;:")))
        if not is_oversized(text):
            try:
                read_formula(text, found.__setitem__)
            except RecursionError:  # an answer nested as deeply cannot be read either
                continue
    return tuple(sorted(found.items(), key=lambda item: -sum(1 for _ in parts(item[0]))))


def _formulas(question: str) -> Iterator[str]:
    """Yield the texts between mathematics delimiters, and texts outside that look like mathematics."""
    question = _DRAWING.sub(" ", question)
    for match in _FORMULA.finditer(question):
        yield match[1] or match[2] or match[3]
    for prose in _FORMULA.split(question)[:: _FORMULA.groups + 1]:
        for piece in _PROSE.split(_ARTICLE.sub(".  ", prose)):
            if _SIGN.search(piece):
                yield piece


def is_copied_number(gold: str, predicted: str, question: str) -> bool:
    """Return whether `predicted`, equal to the number `gold`, is a fraction, ratio or power of ten from the question.

    It is not if the gold answer has the same digits.
    """
    if re.findall("[0-9]+", gold) == re.findall("[0-9]+", predicted):
        return False
    scientific = in_powers_of_ten(predicted)
    if scientific != predicted:
        return stands_in(question, scientific) or is_formula_of(question, scientific)
    if not _FRACTION.search(predicted):
        return False
    value = exact_number(_COLON.sub("/", predicted))
    if REPEATING.fullmatch(predicted):  # however it is written: 0.\overline{3}, 0.(3), 0.3\overline{33}
        return any(exact_number(found[0]) == value for found in REPEATING.finditer(spelled(question[:_SEARCHED])))
    return stands_in(question, predicted.lstrip("+- ")) or (
        value is not None and holds_copy(gold, predicted, question, lambda formula: exact_number(formula) == value)
    )


def stands_in(question: str, text: str) -> bool:
    """Return whether the question contains this text, ignoring spaces, braces and multiplication signs."""
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


def _is_number(text: str) -> bool:
    text = text.lstrip("+- ")
    return exact_number(text) is not None or _SCIENTIFIC.fullmatch(text) is not None


def _letters(text: str) -> str:
    return re.sub(r"[\s{}$]", "", _searchable(text))


@functools.lru_cache(maxsize=256)
def _searchable(text: str) -> str:
    text = spelled(" ".join(text.split())).casefold()
    return _TIMES.sub(" ", re.sub(r"\\div(?![a-z])", "/", text))
