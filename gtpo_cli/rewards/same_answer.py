r"""Compare two answers as far as possible without computer algebra.

An answer is a number, a list or set (in any order), a tuple, interval or union (order and brackets count), plain text,
or mathematics. Lists, tuples and sets are compared part by part; the caller's `algebra` function decides about parts
that need algebra. In doubt answers are not equal. They are compared as a whole, so a number inside a sentence, one of
several numbers, or a substring is never the answer.

- Numbers are exact: 0.3333 is not 1/3. A gold answer's percent sign may be omitted or evaluated (50% = 50 = 0.5).
- One side may omit units, money, degrees or percent, but two different ones are not equal. Other words after a number
  may be omitted from the gold answer (gold `21\text{ dogs}` = 21). They may follow in the other answer only if the
  question has them: gold 5 is "5 apples" where apples are asked for. An angle may be in degrees or radians.
- `and` is not `or`. Inside a set or a tuple {1} is not 1; (3,) is an unfinished list, not 3.
- `x = 5` is 5, but not `y = 5`.
- A gold answer that is a code (a date, a score, a telephone number, `B2-C3`) is text: it is never computed.
- An answer whose mathematics cannot be parsed equals nothing, not even itself.

An answer that copies the question is not worked out: `8 \\div 2 \\div 2 + 6` equals 8 but does not answer itself. If
the gold answer is a number, the answer must be one. The question's own text, however it is spaced or bracketed, is
never an answer unless it is a number or the gold answer's own text. A fraction, ratio, power of ten or repeating
decimal from the question counts only if the gold answer has the same digits: `\\frac{16}{20}` is not `\\frac{4}{5}`
simplified. A copy with a change that needs algebra (`(x+5)^2+0`) is not recognised. Pure standard library.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gtpo_cli.rewards.normalize import (
    breaks_off,
    canonical,
    connectives,
    is_enclosed,
    is_oversized,
    peel,
    spelled,
    split_top_level,
)
from gtpo_cli.rewards.quantity import (
    Quantity,
    exact_number,
    in_powers_of_ten,
    same_time_or_ratio,
    split_label,
    split_percent,
)

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
    text = peel(text.lstrip("+- "))  # -(7/4)
    is_number = exact_number(text) is not None or _SCIENTIFIC.fullmatch(text) is not None
    return is_number and text[0] not in "+-"  # but -(-7) is an expression


def _letters(text: str) -> str:
    return "".join(_searchable(text).split())


@functools.lru_cache(maxsize=256)
def _searchable(text: str) -> str:
    text = spelled(" ".join(text.split())).casefold()
    return _TIMES.sub(" ", _BRACKETS.sub(" ", re.sub(r"\\div(?![a-z])", "/", text)))


Algebra = Callable[[str, str], bool]

_LATEX = re.compile(r"[\\{}^_$]")
_BASED = re.compile(  # 1011_2: compared as text, base included
    r"(?P<digits>[0-9A-Za-z]+|\([0-9A-Za-z]+\))_(?P<base>[0-9]+|[a-z]+|\{ ?[0-9]+ ?\}|\{ ?[a-z]+ ?\})"
)
_EQUALS = re.compile(r"(?<![<>!:=\\~])(?<!\\not)(?<!\\not )=+")  # == too: the parser reads it as =
_GREEK = (
    "alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|upsilon|"
    "(?:var)?phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega|ell"
)
_VARIABLE = rf"(?:[A-Za-z]|\\(?:{_GREEK})) ?(?:_\{{?\w+\}}?)?"
_NAME = re.compile(  # no other LaTeX command, and not the word "not": \neq = 5 names nothing
    rf"((?!not ?=)(?:[A-Za-z]+|\\(?:{_GREEK}))'?(?:_\{{?\w+\}}?)?(?:\([A-Za-z](?:, ?[A-Za-z])*\))?"
    rf"|\\vec ?\{{? ?[A-Za-z] ?\}}?|\({_VARIABLE}(?:, ?{_VARIABLE})+\)"
    r"|(?:\\(?:angle|frac) ?|[A-Z](?:_\{?[A-Z0-9]++\}?+)?+|[:|/{} ])++"  # \angle ABC, |AB|, S_1:S_2
    r") ?=+ ?(.+)"
)
_NOT_EQUAL = re.compile(r" ?\\ne(?![A-Za-z]) ?")
_PI = re.compile(r"\\pi(?![A-Za-z])")
_INEQUALITY = re.compile(r"[<>]|\\(?:[lg]eq?|[lg]t|ne)(?![A-Za-z])")
_INTERVALS = ("()", "(]", "[)", "[]")
_SET = re.compile(r"\\emptyset *|\\\{.*\\\}", re.DOTALL)
_CROSS = re.compile(  # what stands on both sides of a \times that is no multiplication of numbers
    r"([A-Za-z]|\\[a-z]+ ?\{[^{}]*\}|[)\]])(?= ?\\times(?![A-Za-z]) ?([A-Za-z(\[]|\\[a-z]+(?: ?\{[^{}]*\})?))"
)
# Cases in which the LaTeX parser would guess: numbers side by side, 1\frac{11}{10} (it multiplies), bases and other
# subscripts without a name (it drops them), dots, quotes, unknown relations (it drops one side), text that is not
# printed (it reads it), the power T (it transposes), double factorials (it takes two single ones), small words between
# two numbers (it multiplies their letters: 3 to 4 would be 4 to 3), signs without a meaning in LaTeX.
_GUESSWORK = re.compile(
    r"^-?[0-9]+ ?\\frac ?\{[0-9]+\} ?\{[0-9]+\}$|(?<!_)[0-9] +[.0-9]|[0-9]\.[0-9]*\.|\.\.|\\[vd]dots"
    r"|[0-9)] ?_|\^ ?(?:\{[^{}]*\}|[^{}\\]) ?_|[0-9][eE][+-]?[0-9]"
    r"|\\p?mod|\\bmod|\\equiv|\\approx|\\sim|\\ne(?![A-Za-z])|\\(?:log|ln) ?\^|\\[hv]?phantom|\\[hv](?:space|skip)"
    r"|\^ ?\{? ?(?:T|\\top)(?![A-Za-z])|! ?!| (?:to|in|of|is|by|at|on|if|as|vs) |[\"'`$#@?~]"
)
# What mathematics never leaves in an answer without LaTeX: two numbers joined by - that it would have subtracted (but
# 3-2x and 2*x-3), a double fraction, a digit after a letter (x2 is x_2 or 2x; but 2e3 and sqrt2), a leading zero.
_NUMBER = "[0-9]++(?:[./][0-9]++)*+"
_CODE = re.compile(
    rf"(?<![A-Za-z0-9.*/)])(?<![*/] )(?:{_NUMBER}|[A-Z]{{2,}}+) ?-[-+ ]*+{_NUMBER}"
    r"(?![A-Za-z!]| ?[(*/]| [A-Za-z](?![A-Za-z]))"
    r"|[0-9] ?/ ?[0-9]+ ?/ ?[0-9]|(?<![A-Za-z]{3})[A-Za-z](?<![0-9.][eE])[0-9]|(?<![0-9.,])0[0-9]"
)
_WORD = re.compile(r"\\?[A-Za-z]+")
_MATHEMATICAL_WORDS = frozenset(
    "sqrt sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log exp max min gcd lcm det "
    "pmatrix bmatrix vmatrix matrix array".split()
)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Decides about parts: equal numbers, and mathematics. `question`: None allows copying."""

    algebra: Algebra
    question: str | None

    def may_be(self, gold: str, predicted: str) -> bool:
        return self.question is None or not is_copied_number(gold, predicted, self.question)

    def is_copy(self, predicted: str) -> bool:
        return self.question is not None and stands_in(self.question, predicted)

    def asks_for(self, label: Sequence[str]) -> bool:
        """Return whether each word of a label is one of the question's, in singular or plural."""
        return self.question is not None and _stems(" ".join(label)) <= _stems(self.question)

    def same_mathematics(self, gold: str, predicted: str) -> bool:
        worked_out = self.question is None or is_worked_out(gold, predicted, self.question)
        return worked_out and self.algebra(gold, predicted)


@functools.lru_cache(maxsize=256)
def _stems(text: str) -> frozenset[str]:
    return frozenset(word.casefold().removesuffix("s") for word in re.findall("[A-Za-z'-]+", text))


def equal(gold: str, predicted: str, algebra: Algebra, *, question: str | None = None) -> bool:
    """Return whether `predicted` is the same answer as `gold`. `algebra(gold_part, predicted_part)` decides the rest.

    This is not symmetric: the gold answer is trusted, so only its label of unknown words may be omitted. With a
    question the answer must also be worked out (`is_worked_out`). Raises only what `algebra` raises.
    """
    gold, predicted = canonical(gold), canonical(predicted)
    if not gold or not predicted:
        return False
    if is_oversized(gold) or is_oversized(predicted):
        return _is_plain(gold) and gold.casefold() == predicted.casefold()
    judge = _Judge(algebra, question)
    if "=" in predicted and "=" not in gold and judge.is_copy(predicted):
        return False  # `g(x) = 3` out of the question
    if ("=" in gold) != ("=" in predicted):
        gold, predicted = _solutions(gold), _solutions(predicted)
    try:
        return _same(gold, predicted, judge)
    except RecursionError:  # signs or exponents nested hundreds deep
        return False


_NO_ANSWERS = frozenset({"proof", "notfound"})  # of NuminaMath
# JSON: an object, or several answers, of which Skywork-OR1 takes any
_JSON = re.compile(r'[\s\[]*\{\s*"[^"]*"\s*:|\s*\[[\s\[]*"')


def usable(gold: str, parses: Callable[[str], bool]) -> bool:
    """Return whether anything can equal this gold answer. `parses(part)` tells whether LaTeX is mathematics."""
    text = canonical(gold)
    if not text or text.casefold() in _NO_ANSWERS or _JSON.match(gold):
        return False
    if is_oversized(text):
        return _is_plain(text)
    try:
        return _usable(text, parses)
    except RecursionError:
        return False


def _usable(text: str, parses: Callable[[str], bool]) -> bool:
    name = _NAME.fullmatch(text)
    if name and len(_EQUALS.findall(text)) == 1:
        text = name[2]
    value = peel(split_label(text).value)
    without_percent = split_percent(value)[0]
    if exact_number(without_percent) is not None or _is_plain(without_percent):
        return True
    _, parts = _structure(value)  # the percent sign may be that of the last part
    if parts != [value]:
        return all(_usable(part, parses) for part in parts)
    sides = _NOT_EQUAL.split(without_percent)
    if len(sides) > 1:
        return len(sides) == 2 and all(side and _usable(side, parses) for side in sides)
    return parses(without_percent)


def _same(gold: str, predicted: str, judge: _Judge, *, inside: bool = False) -> bool:
    """Compare two answers or parts. `inside` a set or a tuple, {1} is not 1."""
    gold_number, number = exact_number(gold), exact_number(predicted)
    if gold_number is not None and number is not None:
        return gold_number == number and judge.may_be(gold, predicted)
    gold, predicted = _without_names(gold, predicted)
    with_colons = same_time_or_ratio(gold, predicted)
    if with_colons is not None:
        return with_colons and judge.may_be(gold, predicted)
    gold_quantity, quantity = split_label(gold), split_label(predicted)
    turned = _in_radians(gold_quantity, quantity)
    if turned is not None:
        angle = rf"({quantity.value})^\circ" if quantity.label == ("degree",) else predicted
        return not judge.is_copy(angle) and _same(*turned, judge)
    if gold_quantity.label != quantity.label and (split_percent(gold)[1] or split_percent(predicted)[1]):
        return False  # 5% and 5 cm
    if gold_quantity.label == quantity.label or (
        not gold_quantity.label and (quantity.known or judge.asks_for(quantity.label))
    ):
        gold, predicted = peel(gold_quantity.value), peel(quantity.value)
    elif not quantity.label:
        gold = peel(gold_quantity.value)
    elif gold_quantity.label:
        return False  # 5 cm and 5 m
    percentages = _same_percentages(gold, predicted)
    if percentages is not None:
        return percentages and judge.may_be(gold, predicted)
    if inside and bool(_SET.fullmatch(gold)) != bool(_SET.fullmatch(predicted)):
        return False
    gold_kind, gold_parts = _structure(gold)
    kind, parts = _structure(predicted)
    if any(
        one_kind in _INTERVALS and other_parts == [other] and _INEQUALITY.search(other)
        for one_kind, other, other_parts in ((gold_kind, predicted, parts), (kind, gold, gold_parts))
    ):
        return judge.same_mathematics(gold, predicted)
    if gold_kind == "union" and connectives(predicted) == {"or"}:
        kind = "union"
    if gold_parts == [gold] and parts == [predicted]:
        return _same_atom(gold, predicted, judge)
    if len(gold_parts) == 1 != len(parts) and gold_parts != [gold]:  # {(1,2)} and (1,2)
        return not _SET.fullmatch(gold_parts[0]) and _same(gold_parts[0], predicted, judge, inside=True)
    if len(parts) == 1 != len(gold_parts) and parts != [predicted]:
        return not _SET.fullmatch(parts[0]) and _same(gold, parts[0], judge, inside=True)
    if gold_kind != kind or len(gold_parts) != len(parts) or not _same_connectives(gold, predicted):
        return False
    if any(whole == [text] and _SET.fullmatch(text) for text, whole in ((gold, gold_parts), (predicted, parts))):
        return False  # the empty set, and a set that holds it
    one_side_named = ("=" in gold) != ("=" in predicted)  # x=1, y=2 against 1, 2: there the order counts
    if kind in ("list", "union") and not one_side_named and "..." not in parts:
        return _same_in_any_order(gold_parts, parts, judge)
    return all(_same(g, p, judge, inside=True) for g, p in zip(gold_parts, parts, strict=True))


def _in_radians(gold: Quantity, predicted: Quantity) -> tuple[str, str] | None:
    r"""Return an angle in degrees and one in radians (or a bare multiple of pi) in radians; None for anything else."""

    def is_in_radians(quantity: Quantity) -> bool:
        return quantity.label == ("radian",) or (not quantity.label and bool(_PI.search(quantity.value)))

    def turned(quantity: Quantity) -> str:
        return rf"\frac{{({quantity.value}) \pi}}{{180}}"

    if gold.label == ("degree",) and is_in_radians(predicted):
        return turned(gold), predicted.value
    if predicted.label == ("degree",) and is_in_radians(gold):
        return gold.value, turned(predicted)
    return None


def _same_connectives(gold: str, predicted: str) -> bool:
    """Compare `and` and `or`. A comma may be either, but between inequalities it means `and`."""
    one, other = (
        connectives(text) or (frozenset({"and"}) if _INEQUALITY.search(text) else frozenset())
        for text in (gold, predicted)
    )
    return not one or not other or one == other


def _solutions(text: str) -> str:
    """Return the list `2, -3` of `x = 2 or x = -3`; a text without such named solutions stays."""
    _, parts = _structure(text)
    names = [_NAME.fullmatch(part) for part in parts]
    found = [name for name in names if name is not None]
    alike = len({re.sub(r" ?_\{?\w+\}?$", "", name[1]) for name in found}) == 1
    return ", ".join(name[2] for name in found) if len(parts) > 1 and len(found) == len(parts) and alike else text


def _without_names(gold: str, predicted: str) -> tuple[str, str]:
    """Return the right-hand sides of `x = 5` and `5`, or of `x = 5` and `x = 6`. Two different names stay."""
    gold_name = _NAME.fullmatch(gold) if len(_EQUALS.findall(gold)) == 1 else None
    name = _NAME.fullmatch(predicted) if len(_EQUALS.findall(predicted)) == 1 else None
    if gold_name and name:
        if gold_name[1].replace(" ", "") == name[1].replace(" ", ""):
            return peel(gold_name[2]), peel(name[2])
    elif gold_name and not _EQUALS.search(predicted):
        return peel(gold_name[2]), predicted
    elif name and not _EQUALS.search(gold):
        return gold, peel(name[2])
    return gold, predicted


def _same_percentages(gold: str, predicted: str) -> bool | None:
    """Compare numbers with or without percent signs; None unless both are numbers."""
    gold, gold_is_percentage = split_percent(gold)
    predicted, is_percentage = split_percent(predicted)
    gold_number, number = exact_number(gold), exact_number(predicted)
    if gold_number is None or number is None:
        return None
    if gold_is_percentage == is_percentage:
        return gold_number == number
    if gold_is_percentage:
        return number in (gold_number, gold_number / 100)
    # 25% for gold 25 answers "what percentage"; 0.5% for gold 0.5 is wrong.
    return number / 100 == gold_number or (number == gold_number and abs(number) >= 1)


def _structure(text: str) -> tuple[str, list[str]]:
    r"""Return kind and parts: ("list", [...]) for lists and sets, ("()", ...) for brackets, ("union", ...) for unions.

    Anything else is a list with itself as its one part. `a \pm b` is the list `a + b, a - b`.
    """
    if exact_number(text) is not None or breaks_off(text):
        return "list", [text]
    if is_enclosed(text):
        opening = re.match(r"\\\{|\\langle|.", text)
        closing = re.search(r"(?:\\\}|\\rangle|.)$", text)
        assert opening is not None
        assert closing is not None
        parts = split_top_level(text[opening.end() : closing.start()])
        kind = opening[0] + closing[0]
        if kind == r"\{\}" or (kind == "{}" and len(parts) > 1):
            return "list", [peel(part) for part in parts]
        if len(parts) > 1:
            return kind, [peel(part) for part in parts]
    members = split_top_level(text, "union")
    if len(members) > 1:
        return "union", members
    parts = split_top_level(text)
    if len(parts) == 1 and text.count(r"\pm") == 1 and re.search(r"\\pm(?![A-Za-z])", text):
        parts = [text.replace(r"\pm", sign).removeprefix("+").strip() for sign in "+-"]
    return "list", [peel(part) for part in parts] if len(parts) > 1 else [text]


def _same_in_any_order(gold_parts: Sequence[str], parts: Sequence[str], judge: _Judge) -> bool:
    left = list(parts)
    for gold in gold_parts:
        match = next((part for part in left if _same(gold, part, judge, inside=True)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _same_atom(gold: str, predicted: str, judge: _Judge) -> bool:
    (gold_value, gold_is_percentage), (value, is_percentage) = split_percent(gold), split_percent(predicted)
    if gold_is_percentage and is_percentage:
        gold, predicted = gold_value, value  # as `_usable` looks at them
    if _is_plain(gold) and _is_plain(predicted) and _folded(gold) == _folded(predicted):
        return True
    if is_code(gold):
        return _without_spaces(gold) == _without_spaces(predicted)
    if _NOT_EQUAL.search(gold) and _NOT_EQUAL.search(predicted):
        return _same_sides(_NOT_EQUAL.split(gold), _NOT_EQUAL.split(predicted), judge)
    if gold == predicted:
        return judge.same_mathematics(gold, predicted)  # only whether it can be parsed is open
    if _CROSS.search(gold) and sorted(_CROSS.findall(gold)) != sorted(_CROSS.findall(predicted)):
        return False  # the product of two vectors changes its sign with their order
    gold, predicted = in_powers_of_ten(gold, beside=predicted), in_powers_of_ten(predicted, beside=gold)
    gold_sides, sides = _EQUALS.split(gold), _EQUALS.split(predicted)
    if len(gold_sides) != len(sides):
        return False  # an equation and something else
    if len(sides) > 2:  # algebra would look at the two ends of a chain only
        return all(_same(g.strip(), p.strip(), judge) for g, p in zip(gold_sides, sides, strict=True))
    return _is_mathematics(gold) and _is_mathematics(predicted) and judge.same_mathematics(gold, predicted)


def _same_sides(gold: Sequence[str], predicted: Sequence[str], judge: _Judge) -> bool:
    """Return whether two statements `a != b` have the same sides, in either order."""
    if len(gold) != 2 or len(predicted) != 2 or not all((*gold, *predicted)):
        return False
    return any(
        all(_same(g, p, judge) for g, p in zip(gold, sides, strict=True)) for sides in (predicted, predicted[::-1])
    )


def _is_plain(text: str) -> bool:
    """Return whether a text has no LaTeX, so that nothing can fail to parse."""
    return not _LATEX.search(text) or _BASED.fullmatch(text) is not None


def is_code(gold: str) -> bool:
    """Return whether a canonical gold answer that is no number is a date, a score, a code: signs that join, no sums."""
    return not _LATEX.search(gold) and _CODE.search(gold) is not None


def is_text(gold: str) -> bool:
    """Return whether a gold answer is words or a code, not mathematics."""
    text = canonical(gold)
    if exact_number(text) is not None or _LATEX.search(text):
        return False
    return is_code(text) or bool(re.search(r"[^\W\d_]{3}", text))


def _without_spaces(text: str) -> str:
    """Fold a code, without spaces around its signs."""
    return re.sub(r" ?([^A-Za-z0-9 ]) ?", r"\1", text).casefold()


def _folded(text: str) -> str:
    based = _BASED.fullmatch(text)
    if based is None:
        return text.casefold()
    return f"{based['digits'].strip('()')}_{based['base'].strip('{ }')}".casefold()


def _is_mathematics(text: str) -> bool:
    """Return whether algebra may decide. It may not for prose, whose letters it would multiply, nor for guesses."""
    if not text.isascii() or breaks_off(text) or _GUESSWORK.search(text) or not re.search(r"[0-9\\+*/^=<>|-]", text):
        return False
    words = _WORD.findall(text)
    return all(word[0] == "\\" or len(word) <= 2 or word in _MATHEMATICAL_WORDS for word in words)
