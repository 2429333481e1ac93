"""Exact numbers against Python's own fractions; labels against a hand table."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gtpo_cli.rewards.quantity import exact_number, split_label


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", Fraction(18)),
        ("-3", Fraction(-3)),
        ("+3", Fraction(3)),
        ("007", Fraction(7)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("18.", Fraction(18)),
        ("1,319", Fraction(1319)),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("36/2", Fraction(18)),
        ("-1/2", Fraction(-1, 2)),
        ("1 / 4", Fraction(1, 4)),
        ("1e3", Fraction(1000)),
        ("2.5e-3", Fraction(1, 400)),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"-\frac{1}{2}", Fraction(-1, 2)),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac 7{10}", Fraction(7, 10)),
        (r"\frac{70}7", Fraction(10)),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        ("2 1/2", Fraction(5, 2)),
        ("-2 1/2", Fraction(-5, 2)),
    ],
)
def test_numbers(text: str, value: Fraction) -> None:
    assert exact_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        ".",
        "1,2",
        "1,31,9",
        "0,123",
        "1,2345",
        "12,34",
        "1 2",
        "1 319",
        "1.2.3",
        "1/0",
        r"\frac{1}{0}",
        "1/2/3",
        "--3",
        "5!",
        "x",
        "18 dollars",
        "$18",
        "1e1000",
        "1e",
        "e3",
        "\N{VULGAR FRACTION ONE HALF}",
        "\u0661\u0662",
        "\uff11\uff12",
        "0x10",
        "1_000",
        "inf",
        "nan",
        r"2\frac{-1}{2}",
        r"\frac{1}{2}3",
        r"\frac123",
        "21/2 3",
        "3 4",
        "2 -1/2",
    ],
)
def test_no_numbers(text: str) -> None:
    assert exact_number(text) is None


@given(st.integers(-(10**30), 10**30), st.integers(0, 12))
def test_decimals_and_thousands_commas_are_exact(digits: int, places: int) -> None:
    value = Fraction(digits, 10**places)
    whole, rest = divmod(abs(digits), 10**places)
    decimals = f".{rest:0{places}d}" if places else ""
    sign = "-" if digits < 0 else ""
    assert exact_number(f"{sign}{whole}{decimals}") == value
    assert exact_number(f"{sign}{whole:,}{decimals}") == value


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**9))
def test_fractions_are_exact(numerator: int, denominator: int) -> None:
    value = Fraction(numerator, denominator)
    assert exact_number(f"{numerator}/{denominator}") == value
    assert exact_number(rf"\frac{{{numerator}}}{{{denominator}}}") == value


@given(st.text(alphabet="0123456789,.-+/e \\frac{}", max_size=12))
def test_nothing_is_read_that_python_reads_differently(text: str) -> None:
    number = exact_number(text)
    try:
        expected = Fraction(text.replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        return
    if " " not in text and "," not in text:
        assert number in (expected, None)


@pytest.mark.parametrize(
    ("text", "value", "label", "known"),
    [
        ("5", "5", (), True),
        ("$18.00", "18.00", ("dollar",), True),
        ("-$0.50", "-0.50", ("dollar",), True),
        ("18$", "18", ("dollar",), True),
        ("18 dollars", "18", ("dollar",), True),
        ("5 cm", "5", ("cm",), True),
        ("5cm", "5", ("cm",), True),
        ("5 centimeters", "5", ("cm",), True),
        ("5 cm^2", "5", ("square", "cm"), True),
        ("5 square centimeters", "5", ("square", "cm"), True),
        ("5 sq. cm", "5", ("square", "cm"), True),
        ("60 mph", "60", ("mi", "per", "hour"), True),
        ("60 miles per hour", "60", ("mi", "per", "hour"), True),
        ("60 miles/hour", "60", ("mi", "per", "hour"), True),
        ("$5 per hour", "5", ("dollar", "per", "hour"), True),
        (r"45^\circ", "45", ("degree",), True),
        (r"45^\circ C", "45", ("degree", "celsius"), True),
        (r"12\sqrt{13} feet", r"12\sqrt{13}", ("ft",), True),
        ("21 dogs", "21", ("dogs",), False),
        ("14 right triangles", "14", ("right", "triangles"), False),
        # no label at all
        ("5 m", "5 m", (), True),
        ("6pq", "6pq", (), True),
        ("5 million", "5 million", (), True),
        ("5 dozen eggs", "5 dozen eggs", (), True),
        ("June 20", "June 20", (), True),
        ("leap year", "leap year", (), True),
        (r"\tan 15^\circ", r"\tan 15^\circ", (), True),
        ("either 3 or 4 dogs", "either 3 or 4 dogs", (), True),
        ("$5 and $6", "$5 and $6", (), True),
        ("feet", "feet", (), True),
    ],
)
def test_labels(text: str, value: str, label: tuple[str, ...], known: bool) -> None:
    quantity = split_label(text)
    assert (quantity.value, quantity.label, quantity.known) == (value, label, known)
