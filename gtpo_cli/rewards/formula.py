r"""Read a formula as a tree (`trees.py`) that does not depend on order, brackets, spacing and styles.

`(x+5)^2`, `\left(5+x\right)^{2}` and `1\cdot(x+5)^2+0` give the same tree, `x^2+10x+25` another. Every text gives a
tree; one that is not a formula equals little else. Pure standard library.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

from gtpo_cli.rewards.trees import NOTHING, Tree, function_of, inverse, kind, minus, power_of, product_of, sum_of

_TOKEN = re.compile(
    r"[0-9]*\.[0-9]* ?\\(?:overline|bar|dot) ?(?:\{ ?[0-9]+ ?\}|[0-9])"  # a repeating decimal
    r"|\\(?:begin|end) ?\{ ?[A-Za-z]+\*? ?\}|\\[A-Za-z]+|\\\\|\\.|[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
    r"|(?<![A-Za-z])(?:sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|pi)(?![A-Za-z])|[^\s]"
)
_SILENT = re.compile(  # how it looks, and signs beside numbers
    r"\\(?:left|right|[bB]igg?[lrm]?|middle|(?:display|text|script)style|(?:no)?limits|(?:math)?strut|q?quad|rm|bf|it|bm"
    r"|text(?:bf|it|rm)?|mbox|math(?:bf|rm|it|sf|tt|cal|bb|op)|operatorname|boldsymbol|[,;:!> %$])|[$~%.]"
)
_SYNONYMS = {"lvert": "|", "rvert": "|", "vert": "|", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]"}
_SYNONYMS |= {"dfrac": "\\frac", "tfrac": "\\frac", "cfrac": "\\frac", "dbinom": "\\binom", "tbinom": "\\binom"}
_SYNONYMS |= {"leq": "\\le", "geq": "\\ge", "neq": "\\ne", "ast": "*", "rightarrow": "\\to", "pi": "\\pi"}
_CLOSERS = frozenset([*")]}", "\\}", "\\rfloor", "\\rceil", "\\rangle"])
_OPENERS = frozenset([*"([{|", "\\{", "\\|", "\\lfloor", "\\lceil", "\\langle"])
_SIGNS = ("+", "-")
_TIMES = frozenset(["*", "\\cdot", "\\times"])
_DIVIDE = frozenset(["/", "\\div", ":"])
_RELATIONS = frozenset(
    ["=", "<", ">", *(f"\\{name}" for name in "le ge ne approx equiv to in sim cup cap pm mp setminus mid".split())]
)
_EITHER_WAY_ROUND = frozenset(["=", "\\ne", "\\cup", "\\cap"])
_BREAKS = frozenset([",", ";", "\\\\"])
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp gcd lcm max min arg".split()
)
_TWO_ARGUMENTS = frozenset(["\\binom", "\\overset", "\\underset", "\\stackrel"])
_OPERATORS = {f"\\{name}": "integral" for name in ("int", "iint", "iiint", "oint")}
_OPERATORS |= {"\\sum": "sum", "\\prod": "product", "\\lim": "limit", "\\limsup": "limit", "\\liminf": "limit"}
_OPERATORS |= {"\\det": "determinant", "\\nabla": "derivative"}
_LONGEST_NUMBER = 40  # digits that are read as a number


def read_formula(text: str, found: Callable[[Tree, str], None] = lambda tree, text: None) -> Tree:
    """Read the tree of a formula in canonical spelling. `found` is called with every tree in it and its text.

    Raises RecursionError for formulas nested hundreds deep.
    """
    return _Reader(text, found).all()


class _Reader:
    """Parses a formula from left to right. Each method but `all` stops after the part that it read."""

    def __init__(self, text: str, found: Callable[[Tree, str], None]) -> None:
        self._text, self._found = text, found
        matches = [match for match in _TOKEN.finditer(text) if not _SILENT.fullmatch(match[0])]
        self._tokens = [_SYNONYMS.get(match[0].lstrip("\\"), match[0]) for match in matches]
        self._spans = [match.span() for match in matches]
        self._at = 0
        self._inside_bars = False

    def all(self) -> Tree:
        pieces = []
        while self._at < len(self._tokens):
            pieces.append(self._list())
            self._at += 1  # a bracket that nothing opened, or the end
        return pieces[0] if len(pieces) == 1 else ("pieces", *pieces)

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self._at += bool(token)
        return token

    def _noted(self, start: int, tree: Tree) -> Tree:
        if isinstance(tree, tuple) and self._at > start:
            self._found(tree, self._text[self._spans[start][0] : self._spans[self._at - 1][1]])
        return tree

    def _ends(self) -> bool:
        """Return whether this is the end of a term, of the formula, a bracket or a cell."""
        token = self._next()
        is_end = not token or token in _CLOSERS or token in _BREAKS or token == "&" or token.startswith(r"\end")
        return is_end or (token == "|" and self._inside_bars)

    def _list(self) -> Tree:
        items = [self._statement()]
        while self._next() in _BREAKS:
            self._at += 1
            items.append(self._statement())
        return items[0] if len(items) == 1 else (",", *items)

    def _statement(self) -> Tree:
        start, sides, signs = self._at, [self._sum()], []
        while self._next() in _RELATIONS:
            signs.append(self._take())
            sides.append(self._sum())
        if not signs:
            return sides[0]
        if all(sign in (">", "\\ge") for sign in signs):
            signs, sides = ["<" if sign == ">" else "\\le" for sign in signs[::-1]], sides[::-1]
        if _EITHER_WAY_ROUND.issuperset(signs):
            sides.sort(key=repr)
        return self._noted(start, (" ".join(signs), *sides))

    def _sum(self) -> Tree:
        start, terms = self._at, [self._term()]
        while self._next() in _SIGNS:
            terms.append(self._term())
        return self._noted(start, sum_of(terms)) if len(terms) > 1 else terms[0]

    def _term(self) -> Tree:
        """Read signs, and factors with or without a sign between them."""
        start, negative = self._at, self._minus_signs()
        after_signs, factors = self._at, [self._factor()]
        while not self._ends() and self._next() not in _SIGNS and self._next() not in _RELATIONS:
            sign = self._take() if self._next() in _TIMES or self._next() in _DIVIDE else "*"
            turned = self._minus_signs() if self._next() in _SIGNS else False
            factor = inverse(self._factor()) if sign in _DIVIDE else self._factor()
            factors.append(minus(factor) if turned else factor)
        tree = self._noted(after_signs, product_of(factors)) if len(factors) > 1 else factors[0]
        return self._noted(start, minus(tree)) if negative else tree

    def _minus_signs(self) -> bool:
        negative = False
        while self._next() in _SIGNS:
            negative ^= self._take() == "-"
        return negative

    def _factor(self) -> Tree:
        start, tree = self._at, self._primary()
        while self._next() in ("^", "_", "!", "'"):
            sign = self._take()
            if sign == "^":
                tree = power_of(tree, self._argument())
            else:
                tree = (sign, tree, self._argument()) if sign == "_" else (sign, tree)
        return self._noted(start, tree)

    def _argument(self) -> Tree:
        """Read the argument of a command, a ^ or a _: a group in braces, or one sign."""
        if self._next() in _SIGNS:
            return minus(self._argument()) if self._minus_signs() else self._argument()
        number = self._next()
        if len(number) > 1 and number.isdigit():  # x^23 is x^2 and then 3
            self._tokens[self._at] = number[1:]
            self._spans[self._at] = (self._spans[self._at][0] + 1, self._spans[self._at][1])
            return number[0]
        return self._primary()

    def _primary(self) -> Tree:
        start, token = self._at, self._next()
        if self._ends() or token in _RELATIONS:
            return NOTHING
        self._at += 1
        if token.replace(".", "", 1).isdigit() and len(token) < _LONGEST_NUMBER:
            return format(Decimal(token).normalize(), "f")
        return self._noted(start, self._compound(token))

    def _compound(self, token: str) -> Tree:
        """Read the construct that begins with this sign; the sign itself if none does."""
        name = token.lstrip("\\")
        if token in _OPENERS:
            return self._group(token)
        if token.startswith(r"\begin"):
            return self._environment(token[6:].strip("{ }*"))
        if token == r"\frac":
            return self._fraction()
        if name == "sqrt":
            index = self._group(self._take()) if self._next() == "[" else "2"
            return power_of(self._argument(), inverse(index))
        if token in _OPERATORS:
            return (_OPERATORS[token], *self._scripts(), self._term())
        if name in _FUNCTIONS:
            return function_of("\\" + name, *self._scripts(), self._operand())
        if token in _TWO_ARGUMENTS:
            return (token, self._argument(), self._argument())
        return (token, self._argument()) if token[0] == "\\" and self._next() == "{" else token

    def _group(self, opening: str) -> Tree:
        is_bar = opening in ("|", "\\|")
        before, self._inside_bars = self._inside_bars, is_bar
        inner = self._list()
        self._inside_bars = before
        if self._next() in _CLOSERS or (is_bar and self._next() == opening):
            self._at += 1
        if is_bar:
            return function_of("|", inner)
        if opening in "([{":
            return ("group", *inner[1:]) if kind(inner) == "," else inner
        return (opening, inner)

    def _environment(self, name: str) -> Tree:
        if name == "array" and self._next() == "{":
            self._group(self._take())
        before, self._inside_bars = self._inside_bars, False
        rows: list[list[Tree]] = [[]]
        while self._next() and not self._next().startswith(r"\end"):
            if self._ends():
                rows += [[]] if self._take() == "\\\\" else []
            else:
                rows[-1].append(self._statement())
        self._take()
        self._inside_bars = before
        style = "determinant" if name in ("vmatrix", "Vmatrix") else "cases" if name == "cases" else "matrix"
        return (style, *(("row", *row) for row in rows if row))

    def _fraction(self) -> Tree:
        above_at, above = self._at, self._argument()
        below_at, below = self._at, self._argument()
        if self._is_differential(above_at) and self._is_differential(below_at) and self._at - below_at > 3:
            ends = self._ends() or self._next() in _SIGNS or self._next() in _RELATIONS
            return ("derivative", above, below, *(() if ends else (self._term(),)))
        return product_of([above, inverse(below)])

    def _is_differential(self, at: int) -> bool:
        r"""Return whether `{d...`, `{\partial...` or `d` is at this position."""
        signs = [token for token in self._tokens[at : at + 2] if token != "{"]
        return signs[:1] in (["d"], ["\\partial"])

    def _scripts(self) -> list[Tree]:
        scripts: dict[str, Tree] = {}
        while self._next() in ("_", "^"):
            place = "upper" if self._take() == "^" else "lower"
            scripts[place] = self._argument()
        return sorted(scripts.items())

    def _operand(self) -> Tree:
        """Read a function's operand: a group in brackets, or the factors up to the next function or sign."""
        turned, factors = self._minus_signs(), [self._factor()]
        while re.fullmatch(r"[0-9A-Za-z.]+|\\(?:pi|theta|alpha|beta|frac|sqrt)", self._next()):
            if self._next() in _FUNCTIONS:
                break
            factors.append(self._factor())
        return minus(product_of(factors)) if turned else product_of(factors)
