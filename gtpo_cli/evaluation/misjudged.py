r"""Find possible errors of the grader: answers judged wrong that look right, and answers that cannot be compared.

The list is for people, so it is more generous than the grader, whose verdicts train models. Still it compares whole
answers: 12 does not look like 112, nor (1,2) like (2,1).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from gtpo_cli.evaluation.store import EvaluatedProblem

SAME_TEXT, SAME_NUMBER = "same text", "same number"
TIMED_OUT, UNPARSABLE = "took too long", "unparsable"
_RELATIVE_TOLERANCE = 1e-6

_COMMANDS = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox|boxed|operatorname|left|right|displaystyle|[,;:! ])")
_LETTERS = re.compile(r"[a-z]+")
_FRACTION = re.compile(r"\\[dt]?frac\{?(-?\d+(?:\.\d+)?)\}?\{?(-?\d+(?:\.\d+)?)\}?")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|[, ])(?=\d{3}(?!\d))")  # (1,200) is ambiguous: people decide
_MINUS_SIGN = "\N{MINUS SIGN}"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:/-?\d+(?:\.\d+)?)?|-?\.\d+")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An answer that a person should look at. `count` completions gave it."""

    problem_id: str
    gold: str
    answer: str
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit. `looks_right` and `unparsable` are sorted by falling count. `judged_wrong` counts
    completions; `without_answer` of them had no answer in tags, or an empty one."""

    looks_right: tuple[AuditEntry, ...]
    unparsable: tuple[AuditEntry, ...]
    judged_wrong: int
    without_answer: int


def audit(problems: Sequence[EvaluatedProblem]) -> Audit:
    """Check all completions that were judged wrong."""
    looks_right: list[AuditEntry] = []
    unparsable: list[AuditEntry] = []
    judged_wrong = without_answer = 0
    for problem in problems:
        wrong = [completion for completion in problem.completions if not completion.correct]
        judged_wrong += len(wrong)
        without_answer += sum(not completion.answer for completion in wrong)
        kinds = Counter((c.answer, c.parsable, c.timed_out) for c in wrong if c.answer)
        for (answer, parsable, timed_out), count in kinds.items():
            assert answer is not None
            why = looks_equal(problem.gold, answer)
            if why is not None:
                looks_right.append(AuditEntry(problem.id, problem.gold, answer, count, why))
            elif timed_out or not parsable:
                why = TIMED_OUT if timed_out else UNPARSABLE
                unparsable.append(AuditEntry(problem.id, problem.gold, answer, count, why))
    return Audit(_by_count(looks_right), _by_count(unparsable), judged_wrong, without_answer)


def looks_equal(gold: str, answer: str) -> str | None:
    r"""Return why a person might accept `answer` for `gold`: the same text or number after a clean-up; else None.

    The clean-up removes case, spaces, dollar signs, `\text{}`-like commands, braces, thousands separators, degree signs
    and a final full stop; for numbers also letters (units), a name before "=" and a percent sign.
    """
    left, right = _plain(gold), _plain(answer)
    if left and left == right:
        return SAME_TEXT
    one, other = _value(gold), _value(answer)
    if one is not None and other is not None and math.isclose(one, other, rel_tol=_RELATIVE_TOLERANCE):
        return SAME_NUMBER
    return None


def _by_count(entries: Sequence[AuditEntry]) -> tuple[AuditEntry, ...]:
    return tuple(sorted(entries, key=lambda entry: (-entry.count, entry.problem_id, entry.answer)))


def _plain(text: str) -> str:
    text = _FRACTION.sub(r"\1/\2", text)
    text = _COMMANDS.sub("", text).casefold()
    text = text.replace(r"^\circ", "").replace("°", "").replace(_MINUS_SIGN, "-")
    text = _THOUSANDS.sub("", text)
    text = re.sub(r"(?<=\d)\s+(?=\d)", "|", text)  # 1 2 is not 12
    return re.sub(r"[\s{}$\\]", "", text).rstrip(".")


def _value(text: str) -> float | None:
    """Return the number in a text that has exactly one besides letters; else None."""
    text = _plain(text).rpartition("=")[2].replace("%", "")
    text = _LETTERS.sub(" ", text).strip("()[].,:; ")
    if not _NUMBER.fullmatch(text):
        return None
    numerator, _, denominator = text.partition("/")
    try:
        return float(Fraction(numerator) / Fraction(denominator or "1"))
    except (ArithmeticError, ValueError):  # division by 0, too large for a float, too many digits
        return None
