r"""Formulas as trees, for recognising the same formula in another form, or one formula inside another.

A tree is a name or a number (a string), or a tuple of its kind and its subtrees: ("+", terms), ("*", factors), both
sorted, ("-", tree), ("/", tree) for one over it, ("^", base, exponent). Building a tree removes only zero terms,
factors and exponents of one, and double minus signs. Pure standard library.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

Tree = Any  # str, or (str, Tree, ...)

NOTHING = "?"  # marks the place where a formula breaks off
WORK = frozenset(["derivative", "integral", "sum", "product", "limit", "determinant"])
_CONSTANTS = frozenset(["e", "i", "\\pi", "\\infty", "\\circ", "\\emptyset"])


def kind(tree: Tree) -> str:
    """Return the kind of a tree: "+", "*", "matrix", ...; "" for a name or a number."""
    return str(tree[0]) if isinstance(tree, tuple) else ""


def sum_of(terms: Sequence[Tree]) -> Tree:
    """Build a sum without zeros; the terms of an inner sum become its own."""
    flat = [inner for term in terms if term != "0" for inner in (term[1:] if kind(term) == "+" else (term,))]
    return _joined("+", flat, "0")


def product_of(factors: Sequence[Tree]) -> Tree:
    """Build a product without ones and with its sign in front, also that of an inner sum: (1-x)y is -((x-1)y)."""
    signs, bare = zip(*(_sign_and_rest(factor) for factor in factors), strict=True) if len(factors) > 1 else ((), ())
    if len(factors) == 1 or sum(factor != "1" for factor in bare) == 1:  # a sum alone keeps its signs
        whole = [factor for factor in factors if factor not in ("1", ("-", "1"))] or ["1"]
        negative = sum(factor == ("-", "1") for factor in factors) % 2 == 1
        return minus(whole[0]) if negative else whole[0]
    flat = [inner for factor in bare if factor != "1" for inner in (factor[1:] if kind(factor) == "*" else (factor,))]
    tree = "0" if "0" in flat else _joined("*", flat, "1")
    return minus(tree) if math.prod(signs) < 0 else tree


def _sign_and_rest(tree: Tree) -> tuple[int, Tree]:
    """Split a tree into 1 or -1 and a rest. A sum and its negative have the same rest."""
    if kind(tree) == "-":
        return -1, tree[1]
    if kind(tree) == "+":
        rest = min(tree, minus(tree), key=repr)
        return (1 if rest == tree else -1), rest
    return 1, tree


def _in_order(tree: Tree) -> Tree:
    return (tree[0], *sorted(tree[1:], key=repr))


_ODD = frozenset(f"\\{name}" for name in "sin tan cot csc arcsin arctan sinh tanh".split())
_EVEN = frozenset(["\\cos", "\\sec", "\\cosh", "|"])
_IN_ANY_ORDER = frozenset(["\\gcd", "\\lcm", "\\max", "\\min"])


def function_of(name: str, *inner: Tree) -> Tree:
    """Build a function of the last argument; the others are scripts. The sign of an odd function moves to the front."""
    *scripts, operand = inner
    if name in _IN_ANY_ORDER:
        factors = operand[1:] if kind(operand) == "*" else (operand,)
        operand = product_of([_in_order(factor) if kind(factor) == "group" else factor for factor in factors])
    sign, rest = _sign_and_rest(operand) if name in _ODD | _EVEN and not scripts else (1, operand)
    tree = (name, *scripts, rest)
    return minus(tree) if sign < 0 and name in _ODD else tree


def minus(tree: Tree) -> Tree:
    """Negate a tree."""
    if tree == "0":
        return tree
    if kind(tree) == "-":
        return tree[1]
    return sum_of([minus(term) for term in tree[1:]]) if kind(tree) == "+" else ("-", tree)


def inverse(tree: Tree) -> Tree:
    """Build one over a tree."""
    if tree == "1":
        return tree
    if kind(tree) == "/":
        return tree[1]
    sign, rest = _sign_and_rest(tree)
    if sign < 0:
        return minus(inverse(rest))
    return product_of([inverse(factor) for factor in tree[1:]]) if kind(tree) == "*" else ("/", tree)


def power_of(base: Tree, exponent: Tree) -> Tree:
    """Build a power. Depending on the exponent it is the base itself, 1, or one over a power."""
    if exponent == "1" or base == "1":
        return base
    if exponent == "0":
        return "1"
    if kind(exponent) == "-":
        return inverse(power_of(base, exponent[1]))
    if kind(base) == "/":
        return inverse(power_of(base[1], exponent))
    if isinstance(exponent, str) and exponent.isdigit():  # (x-1)^2 and (1-x)^2, (x-1)^3 and -(1-x)^3
        sign, rest = _sign_and_rest(base)
        power = ("^", rest, exponent)
        return minus(power) if sign < 0 and int(exponent[-1]) % 2 == 1 else power
    return ("^", base, exponent)


def collected(tree: Tree) -> Tree:
    """Simplify a tree: cancel terms, combine equal factors into a power, add numbers (1+1 is 2)."""
    if isinstance(tree, str):
        return tree
    children = [collected(child) for child in tree[1:]]
    if tree[0] == "+":
        return _collected_sum(children)
    if tree[0] == "*":
        exponents: dict[Tree, Fraction] = {}
        for factor in children:
            base, exponent = _base_and_exponent(factor[1] if kind(factor) == "/" else factor)
            exponents[base] = exponents.get(base, Fraction(0)) + (-exponent if kind(factor) == "/" else exponent)
        return product_of([power_of(base, _written(exponent)) for base, exponent in exponents.items()])
    if tree[0] == "^":
        (base, inner), outer = _base_and_exponent(children[0]), number(children[1])
        return power_of(*children) if outer is None else power_of(base, _written(inner * outer))
    if tree[0] in ("-", "/"):
        return minus(children[0]) if tree[0] == "-" else inverse(children[0])
    return (tree[0], *children)


def _collected_sum(terms: list[Tree]) -> Tree:
    times: Counter[Tree] = Counter()
    constant = Fraction(0)
    for term in terms:
        value = number(term)
        if value is not None:
            constant += value
        else:
            times[term[1] if kind(term) == "-" else term] += -1 if kind(term) == "-" else 1
    rest = [minus(term) if count < 0 else term for term, count in times.items() for _ in range(abs(count))]
    return sum_of([*rest, _written(constant)])


def _base_and_exponent(tree: Tree) -> tuple[Tree, Fraction]:
    exponent = number(tree[2]) if kind(tree) == "^" else None
    return (tree, Fraction(1)) if exponent is None else (tree[1], exponent)


def _written(value: Fraction) -> Tree:
    size = product_of([str(abs(value.numerator)), inverse(str(value.denominator))])
    return minus(size) if value < 0 else size


def number(tree: Tree) -> Fraction | None:
    """Return the value of a number or of sums, products and quotients of numbers; None for anything else."""
    if isinstance(tree, str):
        return Fraction(tree) if tree.replace(".", "", 1).isdigit() and tree.isascii() else None
    values = [number(child) for child in tree[1:]] if tree[0] in ("+", "-", "*", "/") else [None]
    known = [value for value in values if value is not None]
    if len(known) < len(values) or (tree[0] == "/" and known[0] == 0):
        return None
    if tree[0] == "+":
        return sum(known, Fraction(0))
    return Fraction(math.prod(known)) if tree[0] == "*" else -known[0] if tree[0] == "-" else 1 / known[0]


def is_plain_number(tree: Tree) -> bool:
    """Return whether a tree is an integer, a decimal or one fraction, with or without a sign."""
    bare = tree[1] if kind(tree) == "-" else tree
    factors = bare[1:] if kind(bare) == "*" else (bare,)
    above = [factor for factor in factors if isinstance(factor, str)]
    below = [factor[1] for factor in factors if kind(factor) == "/"]
    if len(above) > 1 or len(below) > 1 or len(above) + len(below) < len(factors):
        return False
    return all(isinstance(part, str) and number(part) is not None for part in above + below)


def parts(tree: Tree) -> Iterator[Tree]:
    """Yield a tree and all its subtrees."""
    yield tree
    if isinstance(tree, tuple):
        for child in tree[1:]:
            yield from parts(child)


def holds(tree: Tree, wanted: Tree) -> bool:
    """Return whether a tree contains another as a subtree, or as some terms of a sum or factors of a product."""
    if kind(wanted) not in ("+", "*"):
        return any(part == wanted for part in parts(tree))
    needed = Counter(wanted[1:])
    return any(kind(part) == kind(wanted) and needed <= Counter(part[1:]) for part in parts(tree))


def names(tree: Tree) -> frozenset[str]:
    r"""Return the variables of a tree, such as `x` and `\alpha`, but not `e`, `i`, `\pi`."""
    return frozenset(part for part in parts(tree) if _is_name(part))


def renamed(tree: Tree, kept: frozenset[str]) -> Tree:
    """Replace all names that are not kept by one name."""
    if isinstance(tree, str):
        return "_" if _is_name(tree) and tree not in kept else tree
    children = [renamed(child, kept) for child in tree[1:]]
    return (tree[0], *(sorted(children, key=repr) if tree[0] in ("+", "*") else children))


def work(tree: Tree) -> Counter[str]:
    """Count derivatives, integrals, sums, limits, products, determinants, matrices and powers of matrices."""
    found: Counter[str] = Counter()
    for part in parts(tree):
        if not isinstance(part, tuple):
            continue
        inner = part[1] if len(part) > 1 else NOTHING
        if part[0] in WORK:
            found[part[0]] += 1
        elif part[0] == "matrix":
            found["matrix"] += 1
        elif kind(inner) == "matrix":
            found["determinant"] += part[0] == "|"
            found["power of a matrix"] += part[0] in ("^", "/")
    return +found


def _is_name(tree: Tree) -> bool:
    if not isinstance(tree, str) or tree in _CONSTANTS:
        return False
    return (len(tree) == 1 and tree.isalpha()) or (tree[0] == "\\" and tree[1:].isalpha())


def _joined(sign: str, children: list[Tree], nothing: str) -> Tree:
    if len(children) < 2:
        return children[0] if children else nothing
    return (sign, *sorted(children, key=repr))
