"""Worked solutions of some tasks of reasoning-gym, which has none: what SFT imitates, one operation a step.

chain_sum   27 + 28 - 69 =     "27+28=55 55-69=-14"
products    24 * 31            "24*1=24 24*30=720 24+720=744"
gcd         105, 60            "105%60=45 60%45=15 45%15=0"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any


def worked_solution(name: str, row: Mapping[str, Any]) -> str | None:
    """Return the steps to the answer of a task's row; None for a task that has none here."""
    return None if name not in _WORKED else " ".join(_WORKED[name](row["question"]))


def _chain_sum(question: str) -> list[str]:
    first, *rest, _ = question.rpartition(":")[2].split()  # the last is "="
    steps, total = list[str](), int(first)
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        after = total + int(term) if sign == "+" else total - int(term)
        steps.append(f"{total}{sign}{term}={after}")
        total = after
    return steps


def _products(question: str) -> list[str]:
    """Digit by digit from the right, as on paper."""
    first, *factors = map(int, re.findall(r"-?\d+", question))
    steps, product = list[str](), first
    for factor in factors:
        sign, digits = (-1 if factor < 0 else 1), reversed(str(abs(factor)))
        parts = [sign * int(digit) * 10**place for place, digit in enumerate(digits) if digit != "0"] or [0]
        total = product * parts[0]
        steps.append(f"{product}*{parts[0]}={total}")
        for part in parts[1:]:
            steps.append(f"{product}*{part}={product * part}")
            steps.append(f"{total}+{product * part}={total + product * part}")
            total += product * part
        product = total
    return steps


def _gcd(question: str) -> list[str]:
    """Euclid's algorithm, number by number."""
    common, *others = map(int, re.findall(r"\d+", question))
    steps = list[str]()
    for other in others:
        larger, smaller = max(common, other), min(common, other)
        while smaller:
            steps.append(f"{larger}%{smaller}={larger % smaller}")
            larger, smaller = smaller, larger % smaller
        common = larger
    return steps


_WORKED: dict[str, Callable[[str], list[str]]] = {"chain_sum": _chain_sum, "products": _products, "gcd": _gcd}
