"""Equality of mathematics through math-verify. Imported by the grading workers only: it can hang and eat memory.

math-verify's own `parse` looks for an answer inside a text. Here the whole text is the answer, so it goes straight to
the LaTeX parser that math-verify is built on, which accepts a text whole or not at all.
"""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify

_SPELLING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_DECIMAL_PLACES = 50  # numbers that differ less than this are equal; math-verify's 15 would make 10^-20 equal 10^-21


def parses(text: str) -> bool:
    """Is the text mathematics that stands for something (1/0 does not)? Raises MemoryError."""
    expression = _parse(text, real=True)
    return expression is not None and expression not in (sympy.nan, sympy.zoo)


def same_mathematics(gold: str, predicted: str) -> bool:
    """Do two LaTeX texts mean the same? May run for ever; raises MemoryError."""
    if gold == predicted:
        return parses(gold)
    # Over the reals x^2 + 1 = 0 and x^2 + 2 = 0 have the same solutions: none.
    real = True if "=" not in gold else None
    left, right = _parse(gold, real=real), _parse(predicted, real=real)
    if left is None or right is None:
        return False
    if real is None and not (left.free_symbols and right.free_symbols):
        return False  # an equation without unknowns has no solutions to compare
    if isinstance(left, sympy.Symbol) and isinstance(right, sympy.Symbol):
        return bool(left == right)  # math-verify folds their case: Delta and delta
    try:
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
        expression = latex2sympy(
            normalize_latex(text.replace("%", r"\%"), _SPELLING),
            is_real=real,
            convert_degrees=True,
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),  # 2X is not 2x
        )
        return _exact(expression, real=real)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  the parser raises bare Exception on what is no mathematics
        return None


def _exact(expression: Any, *, real: bool | None) -> Any:
    """Decimals as the fractions they write (0.333 is not 1/3), `i` as the imaginary unit."""
    replacements = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
    imaginary = sympy.Symbol("i", real=real)
    if expression.has(imaginary):
        replacements[imaginary] = sympy.I
    return expression.xreplace(replacements) if replacements else expression
