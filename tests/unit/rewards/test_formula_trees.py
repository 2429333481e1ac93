"""Formulas as trees: what is the same formula in other words, what is in it, and what is left to do."""

import random

import pytest

from gtpo_cli.rewards.formula import read_formula
from gtpo_cli.rewards.trees import collected, holds, is_plain_number, names, number, renamed, work

SAME = [
    ("(x+5)^2", r"\left( 5 + x \right) ^ {2}"),
    ("(x+5)^2", r"1 \cdot (x+5)^2 + 0"),
    ("(x+5)^2", "(5+1x)^{2.0}/1"),
    ("x", "x^1"),
    ("x", "--x"),
    ("a+b", "0-(-(a+b))"),
    ("a+b", r"\frac{a+b}{1}"),
    ("a-b", "-(b-a)"),
    ("x", r"x \cdot y^0"),
    ("x", r"\frac{1}{1/x}"),
    (r"\frac{x}{2}", r"\frac{1}{2}x"),
    (r"\frac{x}{2}", "x/2"),
    ("x^{-1}", r"\frac1x"),
    (r"\sqrt{8}", r"\sqrt8"),
    (r"\sqrt[3]{x}", "x^{1/3}"),
    ("(1-x)^2", "(x-1)^2"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\left[\begin{array}{c} 1 \\ 2 \\ \end{array}\right]"),
    (r"\sin(2x)", r"\sin 2x"),
    ("3 > x", "x < 3"),
    ("a = b", "b = a"),
    (r"3 \geq x > 1", r"1 < x \le 3"),
    ("x^23", r"x^2 \cdot 3"),
    ("[x+1]", r"\bigl(1+x\bigr)"),
    (r"\textbf{x} + \displaystyle y", "y+x"),
    ("(a-b)(c-d)", "(b-a)(d-c)"),
    ("2(x-3)", "-2(3-x)"),
    ("(a-b)^3", "-(b-a)^3"),
    (r"\frac{a-b}{c-d}", r"\frac{b-a}{d-c}"),
    (r"\frac{1}{a-b}", r"-\frac{1}{b-a}"),
    (r"\sin(a-b)", r"-\sin(b-a)"),
    (r"\cos(a-b)", r"\cos(b-a)"),
    ("|a-b|", "|b-a|"),
    (r"\gcd(a, b)", r"\gcd(b, a)"),
    (r"\frac{1}{\sqrt2}", r"\sqrt{\frac12}"),
]
DIFFERENT = [
    ("(x+5)^2", "x^2+10x+25"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("x^2", "x^3"),
    ("2x", "x+x"),
    (r"\frac{16}{20}", r"\frac{4}{5}"),
    ("a-b", "b-a"),
    ("(a-b)c", "(b-a)c"),
    ("(a-b)^3", "(b-a)^3"),
    (r"\sin(a-b)", r"\sin(b-a)"),
    (r"\log(a-b)", r"\log(b-a)"),
    ("x < 3", "x > 3"),
    (r"x \le 3", "x < 3"),
    ("(1, 2)", "(2, 1)"),
    (r"\{1\}", "1"),
    (r"\sin x \cos y", r"\sin y \cos x"),
    ("|x|", "x"),
    (r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"),
    (r"0.\overline{54}", "0"),
    ("x_1", "x_2"),
    ("x!", "x"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_formula_in_other_words_is_one_tree(one: str, other: str) -> None:
    assert read_formula(one) == read_formula(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_is_worked_out_is_another_tree(one: str, other: str) -> None:
    assert read_formula(one) != read_formula(other)


@pytest.mark.parametrize(
    ("whole", "part", "is_held"),
    [
        ("(x+5)^2 + y - y", "(x+5)^2", True),
        ("a+b+c", "c+a", True),
        ("3abc", "ca", True),
        (r"\frac{2(a+b)}{2}", "a+b", True),
        (r"\sqrt{(a+b)^2}", "a+b", True),
        (r"\begin{pmatrix} x+1 \\ 2 \end{pmatrix}", "x+1", True),
        ("a+b", "a-b", False),
        ("a+b", "a+a", False),
        ("x^2+10x+25", "(x+5)^2", False),
    ],
)
def test_a_formula_holds_its_parts_and_some_of_its_terms_and_factors(whole: str, part: str, is_held: bool) -> None:
    assert holds(read_formula(whole), read_formula(part)) is is_held


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("(x+5)(x+5)", "(x+5)^2"),
        (r"\frac{(x+5)^3}{x+5}", "(x+5)^2"),
        ("(x+5)^{1+1}", "(x+5)^2"),
        (r"(x+5)^{\frac{4}{2}}", "(x+5)^2"),
        ("(x+5-1+1)^2", "(x+5)^2"),
        ("x+y-y", "x"),
        ("x+6-1", "x+5"),
        (r"\left(\sqrt{x+1}\right)^2", "x+1"),
        (r"\frac{3x}{3}", "x"),
    ],
)
def test_a_few_steps_are_taken_back(written: str, plain: str) -> None:
    assert collected(read_formula(written)) == read_formula(plain)
    assert read_formula(written) != read_formula(plain)


def test_terms_are_collected_as_python_s_integers_add_up() -> None:
    rng = random.Random(0)
    for _ in range(500):
        values = [rng.randint(-9, 9) for _ in range(rng.randint(2, 5))]
        text = "".join(f"{value:+d}" for value in values)
        assert collected(read_formula(f"x{text}")) == read_formula(f"x{sum(values):+d}")
        assert number(read_formula(text)) == sum(values)


@pytest.mark.parametrize(
    ("formula", "kinds"),
    [
        (r"\frac{d}{dx}(3x^2)", {"derivative"}),
        (r"\frac{d 3x^2}{dx}", {"derivative"}),
        (r"\frac{\partial f}{\partial x}", {"derivative"}),
        (r"\frac{d}{3}", set()),
        (r"\frac{d}{e}", set()),
        (r"\int_0^x t^2\,dt + 1", {"integral"}),
        (r"\sum\limits_{k=1}^n k", {"sum"}),
        (r"\prod_{k=1}^n k", {"product"}),
        (r"\lim_{h \to 0} h", {"limit"}),
        (r"\det A", {"determinant"}),
        (r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}", {"determinant"}),
        (r"\left|\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right|", {"matrix", "determinant"}),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}^2", {"matrix", "power of a matrix"}),
        (r"|x| + \sqrt{2} \sin x", set()),
    ],
)
def test_what_is_left_to_do_is_named(formula: str, kinds: set[str]) -> None:
    assert work(read_formula(formula)).keys() == kinds


@pytest.mark.parametrize("text", ["3", "-3", "0.5", r"\frac{1}{2}", "-3/4", r"2\frac{1}{2}"])
def test_plain_numbers(text: str) -> None:
    assert is_plain_number(read_formula(text))


@pytest.mark.parametrize("text", ["1+2", r"2\cdot 3", "2^3", r"\sqrt{2}", "x", r"\frac{1}{2} \cdot 3 \cdot 5"])
def test_what_is_no_plain_number(text: str) -> None:
    assert not is_plain_number(read_formula(text))


def test_a_name_that_is_not_kept_may_be_any() -> None:
    tree, other = read_formula(r"x + \int_0^x t^2 dt"), read_formula(r"x + \int_0^x u^2 du")
    assert names(tree) == {"x", "t", "d"}
    assert tree != other
    assert renamed(tree, frozenset("x")) == renamed(other, frozenset("x"))
    assert renamed(tree, frozenset("x")) != renamed(read_formula(r"y + \int_0^y u^2 du"), frozenset("x"))


def test_every_text_has_a_tree() -> None:
    rng = random.Random(1)
    signs = (
        r"x y 1 0 23 4.5 + - * / ^ _ ! ' ( ) [ ] { } | \| \{ \} , ; = < \le \frac \sqrt \sum \int \sin \cdot "
        r"\det d $ % \begin{pmatrix} \end{pmatrix} \begin{array} & \\ \binom \partial \pi : \lfloor \rfloor \text "
        r"0.\overline{3} . ? "
    ).split()
    for _ in range(20_000):
        tree = read_formula(rng.choice(["", " "]).join(rng.choices(signs, k=rng.randint(0, 14))))
        assert holds(tree, tree)
        assert work(tree) is not None
        assert collected(tree) is not None
        assert renamed(tree, names(tree)) == tree


def test_parts_come_with_the_text_that_they_were_read_of() -> None:
    found: dict[object, str] = {}
    read_formula(r"y = \sqrt{x + 1} \cdot 2", found.__setitem__)
    assert set(found.values()) == {r"y = \sqrt{x + 1} \cdot 2", r"\sqrt{x + 1} \cdot 2", r"\sqrt{x + 1}", "{x + 1}"}
