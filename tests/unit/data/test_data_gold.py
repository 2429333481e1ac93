from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gtpo_cli.data.reading import UnusableRowError, boxed_gold, last_boxed, own_gold


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so $\boxed{42}$.", "42"),
        (r"$\boxed{\frac{1}{2}}$ and {braces} after", r"\frac{1}{2}"),
        (r"first \boxed{1}, then \boxed{2}", "2"),
        (r"\boxed{1} then \fbox{no solution}", "no solution"),
        (r"the set \boxed{\{1, 2\}} it is", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),  # one escaped brace: LaTeX does not count it
        (r"\boxed{a \\{b}}", r"a \\{b}"),  # but here the brace follows a line break and does count
        (r"we get \boxed 2$.", "2"),
        (r"we get \boxed 12. Done", "12"),
        (r"\boxed {7}", "7"),
        (r"\boxed{}", ""),
        (r"\boxed{ }", ""),
        (r"$x = \boxed{5}$ or $x = \boxed{-3}.$", "5, -3"),
        (r"$\boxed{-2}$ and $\boxed{1}$", "-2, 1"),
        (r"$\boxed{-b+2}$, or $\boxed{2 - b}$.", "2 - b"),  # the same answer twice
        (r"It is \boxed{5}. In \boxed notation", "5"),
        (r"It is \boxed{5}, not \boxed{6", "5"),
        ("\\boxed{two\nlines}", "two\nlines"),
        (r"\boxed{never closed", None),
        (r"\boxed", None),
        (r"\boxedx{3}", None),
        ("boxed{3}", None),
        ("", None),
    ],
)
def test_last_boxed(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside


balanced = st.recursive(
    st.text(r"ab \$,.=^").filter(lambda text: not text.endswith("\\")).map(lambda text: text.replace("\\", r"\{")),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
    max_leaves=8,
)


@given(before=balanced, inside=balanced, after=balanced, macro=st.sampled_from([r"\boxed{", r"\fbox{"]))
def test_last_boxed_returns_what_was_put_in(before: str, inside: str, after: str, macro: str) -> None:
    assert last_boxed(f"{before}{macro}{inside}}}{after}") == inside.strip()


gsm8k_gold, column_gold = own_gold("hashes", solution=None), own_gold("column", solution="solution")


def test_gsm8k_gold_is_what_follows_the_last_mark() -> None:
    answer = "She sells 48/2 = <<48/2=24>>24 clips.\nThat #### is <<24+48=72>>72.\n#### 1,072 "
    assert gsm8k_gold({"answer": answer}) == ("1,072", "She sells 48/2 = 24 clips.\nThat #### is 72.")
    assert gsm8k_gold({"answer": "#### -5"}) == ("-5", None)
    bad: list[tuple[str | None, str]] = [
        ("just 72", "no #### in answer"),
        ("so\n####", "empty gold"),
        (None, "empty gold answer"),
    ]
    for text, reason in bad:
        with pytest.raises(UnusableRowError, match=reason):
            gsm8k_gold({"answer": text})


def test_boxed_gold_prefers_the_box_and_falls_back_to_the_answer() -> None:
    assert boxed_gold({"solution": r"so \boxed{ 3 }", "answer": "4"}) == ("3", r"so \boxed{ 3 }")
    assert boxed_gold({"solution": "so three", "answer": "3"}) == ("3", "so three")
    assert boxed_gold({"solution": None, "answer": 3}) == ("3", None)
    assert boxed_gold({"solution": r"the count is $\boxed{}$", "answer": "0"}) == ("0", r"the count is $\boxed{}$")
    for row, reason in (
        ({"solution": r"$\boxed{}$", "answer": ""}, "empty gold answer"),
        ({"solution": "three"}, r"no \\boxed{} in solution"),
        ({"solution": " ", "answer": None}, "no solution and no answer"),
    ):
        with pytest.raises(UnusableRowError, match=reason):
            boxed_gold(row)


@pytest.mark.parametrize("value", [True, float("nan"), float("inf"), ["1", "2"], [["1"]], {"a": 1}, b"1"])
def test_other_values_are_no_gold_answer(value: object) -> None:
    with pytest.raises(UnusableRowError, match="answer is not text"):
        column_gold({"answer": value})
