r"""The audit: generous, but not absurd."""

from __future__ import annotations

import pytest

from gtpo_cli.evaluation.misjudged import Audit, AuditEntry, audit, looks_equal
from gtpo_cli.evaluation.store import EvaluatedCompletion, EvaluatedProblem


@pytest.mark.parametrize(
    ("gold", "answer", "why"),
    [
        ("Paris", "paris.", "same text"),
        (r"\text{odd}", "Odd", "same text"),
        ("1319", "1 319", "same text"),
        ("1319", "1{,}319", "same text"),
        (r"90^\circ", "90", "same text"),
        (r"\frac{3}{4}", r"\dfrac34", "same text"),
        (r"\left(1,2\right)", "(1, 2)", "same text"),
        ("72", "72 clips in all", "same number"),
        ("0.3333333", "1/3", "same number"),
        ("18", "$18.00", "same number"),
        ("50\\%", "50", "same number"),
        ("5", "x = 5", "same number"),
        ("1/2", "0.5", "same number"),
        ("-3", "\N{MINUS SIGN}3", "same text"),
    ],
)
def test_what_looks_right(gold: str, answer: str, why: str) -> None:
    assert looks_equal(gold, answer) == why


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("12", "112"), ("5", "15"), ("1/2", "2/1"), ("(1,2)", "(2,1)"), ("3", "-3"), ("12", "1 2"), ("78", "7 or 8"),
        ("0.33", "1/3"), ("10", "10^2"), ("x^2", "x^3"), ("5", "5/0"), ("", "."), ("ab", "ba"), ("3", "three"),
        ("5", "9" * 5000), ("5", "1/" + "9" * 5000),
    ],
)  # fmt: skip
def test_what_does_not(gold: str, answer: str) -> None:
    assert looks_equal(gold, answer) is None


def row(
    answer: str | None, *, correct: bool = False, parsable: bool = True, timed_out: bool = False
) -> EvaluatedCompletion:
    return EvaluatedCompletion("", 1, "stop", 0.0, answer, correct, parsable, True, True, timed_out)


def test_every_wrong_completion_is_counted_and_what_matters_is_listed_most_frequent_first() -> None:
    first = EvaluatedProblem(
        "a/1", "q", "72",
        (row("72", correct=True), row("72 clips"), row("27"), row(None), row(""), row(r"\frac{", parsable=False)),
    )  # fmt: skip
    second = EvaluatedProblem(
        "a/2", "q", "5", (row("5 m"), row("5 m"), row("9^9^9", parsable=False, timed_out=True), row("6"))
    )
    assert audit([first, second]) == Audit(
        looks_right=(
            AuditEntry("a/2", "5", "5 m", 2, "same number"),
            AuditEntry("a/1", "72", "72 clips", 1, "same number"),
        ),
        unparsable=(
            AuditEntry("a/1", "72", r"\frac{", 1, "unparsable"),
            AuditEntry("a/2", "5", "9^9^9", 1, "took too long"),
        ),
        judged_wrong=9,
        without_answer=2,
    )


def test_nothing_wrong_nothing_listed() -> None:
    assert audit([EvaluatedProblem("a/1", "q", "5", (row("5", correct=True),))]) == Audit((), (), 0, 0)
