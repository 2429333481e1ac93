"""Equality of mathematics through math-verify. Only grading workers import it, since it can hang and use much memory.

math-verify's own `parse` looks for an answer inside a text. Here the whole text is the answer, so it goes directly to
math-verify's LaTeX parser, which accepts only complete texts.
"""

from __future__ import annotations

import re
from typing import Any

import sympy  # type: ignore[import-untyped]
from latex2sympy2_extended import NormalizationConfig, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from math_verify import verify
from sympy.logic.boolalg import BooleanAtom  # type: ignore[import-untyped]

_SPELLING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)  # 2X is not 2x
# Decimal places in which irrational numbers must agree. With math-verify's 15, 10^-20 would equal 10^-21.
_DECIMAL_PLACES = 50
# f^{-1}, and other names before a bracket except variables, mean the inverse function, not the reciprocal.
_INVERSE = re.compile(
    r"((?<![A-Za-z\\])[fghFGH](?= ?\^)|(?:(?<![A-Za-z\\])[A-Za-w]|\\[a-z]+)(?= ?\^ ?\{? ?- ?1 ?\}? ?\())"
    r" ?\^ ?\{? ?- ?1 ?\}?"
)
_WITH_INVERSE = (r"\sin", r"\cos", r"\tan", r"\cot", r"\sec", r"\csc", r"\sinh", r"\cosh", r"\tanh")
_STRICT = (sympy.StrictGreaterThan, sympy.StrictLessThan)
_INEQUALITIES = (*_STRICT, sympy.GreaterThan, sympy.LessThan, sympy.And)
_DIGITS = re.compile(r"\{*[0-9.]+\}*")


class _Parser(_Latex2Sympy):  # type: ignore[misc]
    r"""The LaTeX parser, but with juxtaposition as a product: `9(9)` is 81, where the parser itself would give 18.

    Only a mixed number, `2\frac{1}{2}`, is a sum. Digits beside digits in braces, `1{8}`, are not mathematics.
    """

    def convert_atom_expr(self, atom_expr: Any) -> Any:
        """Read capital letters as matrices or chemical elements, so AB is not BA, unless `_commuting` decides so."""
        expression = super().convert_atom_expr(atom_expr)
        capitals = {symbol for symbol in expression.atoms(sympy.Symbol) if symbol.name[:1].isupper()}
        return expression.xreplace({symbol: sympy.Symbol(symbol.name, commutative=False) for symbol in capitals})

    def convert_postfix_list(self, arr: Any, i: int = 0) -> Any:
        expression = super().convert_postfix_list(arr, i)
        if i == 0 or not getattr(expression, "is_Rational", False):
            return expression
        before, text = arr[i - 1].getText(), arr[i].getText()
        if _DIGITS.fullmatch(before) and _DIGITS.fullmatch(text):
            raise ValueError("numbers side by side")
        if len(arr) == 2 and before.isdigit() and text.startswith(r"\frac") and expression < 1:
            return expression
        return sympy.Mul(expression, sympy.Integer(1), evaluate=False)  # what is no plain number is not added


def parses(text: str) -> bool:
    """Return whether the text is mathematics with a meaning (1/0 has none). Raises MemoryError."""
    expression = _parse(text, real=True)
    return expression is not None and not _stands_for_nothing(expression)


def same_mathematics(gold: str, predicted: str) -> bool:
    """Return whether two LaTeX texts mean the same. May run forever; raises MemoryError."""
    if gold == predicted:
        return parses(gold)
    # Over the reals x^2 + 1 = 0 and x^2 + 2 = 0 have the same solutions: none.
    real = True if "=" not in gold else None
    left, right = _parse(gold, real=real), _parse(predicted, real=real)
    if left is None or right is None:
        return False
    left, right = _commuting(left, right, real=real)
    if real is None and not (left.free_symbols and right.free_symbols):
        return False  # an equation without unknowns has no solutions to compare
    if any(map(_says_nothing, (left, right))):
        return False
    if isinstance(left, sympy.Symbol) and isinstance(right, sympy.Symbol):
        return bool(left == right)  # math-verify folds their case: Delta and delta
    try:
        values = [side.doit() if isinstance(side, sympy.Expr) else side for side in (left, right)]
        if any(map(_stands_for_nothing, values)):
            return False
        if _has_unknown_derivative(left) or _has_unknown_derivative(right):
            return bool(left == right)
        if any(_matrices(side) for side in (left, right)):
            return _same_products(*values)
        for one, other in ((left, right), (right, left)):
            if isinstance(one, sympy.Set) and isinstance(other, _INEQUALITIES):  # [2, 5] and 2 <= x <= 5
                return len(other.free_symbols) == 1 and bool(other.as_set() == one)
        if isinstance(left, _INEQUALITIES) and isinstance(right, _INEQUALITIES):
            return _same_inequalities(left, right)
        exact = all(isinstance(value, sympy.Rational) for value in values)  # verify compares to _DECIMAL_PLACES
        if exact or any(map(_is_not_finite, values)):
            return bool(values[0] == values[1])
        result: bool = verify(
            left,
            right,
            numeric_precision=_DECIMAL_PLACES,
            float_rounding=_DECIMAL_PLACES,
            timeout_seconds=None,  # the pool kills the worker instead: math-verify's alarm cannot stop C code
            raise_on_error=True,
        )
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  math-verify and sympy raise anything on what they cannot compare
        return False
    return result


def _parse(text: str, *, real: bool | None) -> Any | None:
    try:
        parser = _Parser(is_real=real, convert_degrees=True, config=_CONVERSION)
        text = _INVERSE.sub(lambda match: match[0] if match[1] in _WITH_INVERSE else match[1] + "_{inverse}", text)
        expression = parser.parse(normalize_latex(text.replace("%", r"\%"), _SPELLING))
        return _exact(expression, real=real)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  the parser raises bare Exception on what is no mathematics
        return None


def _matrices(expression: Any) -> set[Any]:
    return {symbol for symbol in expression.atoms(sympy.Symbol) if not symbol.is_commutative}


def _commuting(left: Any, right: Any, *, real: bool | None) -> tuple[Any, Any]:
    """Return both with ordinary symbols for capital letters if there is only one, as its powers commute."""
    capitals = _matrices(left) | _matrices(right)
    products = [side for side in (left, right) if any(len(_matrices(term)) > 1 for term in side.atoms(sympy.Mul))]
    if products:
        return left, right
    ordinary = {symbol: sympy.Symbol(symbol.name, real=real) for symbol in capitals}
    return left.xreplace(ordinary), right.xreplace(ordinary)


def _same_products(left: Any, right: Any) -> bool:
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        return bool(sympy.expand(left - right) == 0)
    if isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        return any(
            _same_products(left.lhs, one) and _same_products(left.rhs, other)
            for one, other in ((right.lhs, right.rhs), (right.rhs, right.lhs))
        )
    return bool(left == right)


def _same_inequalities(left: Any, right: Any) -> bool:
    """Return whether these are the same inequalities, in any order, each multiplied by any number."""
    one, other = (list(side.args) if isinstance(side, sympy.And) else [side] for side in (left, right))
    return len(one) == len(other) and all(
        any(_same_inequality(member, partner) for partner in partners)
        for members, partners in ((one, other), (other, one))
        for member in members
    )


def _same_inequality(left: Any, right: Any) -> bool:
    if isinstance(left, sympy.Ne | sympy.Eq) or isinstance(left, _STRICT) != isinstance(right, _STRICT):
        return bool(left == right)
    ratio = sympy.simplify((left.gts - left.lts) / (right.gts - right.lts))
    return bool(ratio.is_number and ratio.is_positive)


def _says_nothing(side: Any) -> bool:
    """Return whether a statement is true or false for any value of its letters, such as 2 < 3, x = x, true."""
    if isinstance(side, BooleanAtom):
        return True
    relations = side.atoms(sympy.core.relational.Relational) if isinstance(side, sympy.Basic) else set()
    return any(not sympy.simplify(relation.lhs - relation.rhs).free_symbols for relation in relations)


def _stands_for_nothing(value: Any) -> bool:
    """Return whether a value divides by zero or is indeterminate. Two such values are never the same."""
    return bool(value.has(sympy.zoo, sympy.nan, sympy.AccumBounds))


def _has_unknown_derivative(side: Any) -> bool:
    r"""Return whether a derivative's function may not depend on its variable; sympy takes \frac{dy}{dx} for 0."""
    return any(
        derivative.expr.free_symbols and not derivative.expr.free_symbols & set(derivative.variables)
        for derivative in side.atoms(sympy.Derivative)
    )


def _is_not_finite(value: Any) -> bool:
    r"""Return whether infinity is in a value, except in an interval. sympy sometimes simplifies 28 - 2^\infty to 0."""
    return isinstance(value, sympy.Expr) and value.has(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)


def _exact(expression: Any, *, real: bool | None) -> Any:
    """Replace decimals by exact fractions (0.333 is not 1/3), and `i` by the imaginary unit."""
    replacements = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
    imaginary = sympy.Symbol("i", real=real)
    if expression.has(imaginary):
        replacements[imaginary] = sympy.I
    return expression.xreplace(replacements) if replacements else expression
