"""Tags in completions: hand tables for the two modes, and the patterns of the specification as oracles."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gtpo_cli.rewards import extract_answer, is_strict_format
from gtpo_cli.rewards.extract import TAGS
from gtpo_cli.types import Tags

GOOD = "<reasoning>1+1</reasoning><answer> 2 </answer>"

# text, strict format, answer in strict and presence mode
CASES = [
    (GOOD, True, "2", "2"),
    ("Sure! " + GOOD, True, "2", "2"),
    (GOOD + " bye", True, "2", "2"),
    (GOOD + "\n", True, "2", "2"),
    (GOOD + "\n\n", True, "2", "2"),
    ("<reasoning></reasoning><answer></answer>", True, "", ""),
    ("<reasoning>\n1\n</reasoning>\n<answer>\n2\n</answer>", True, "2", "2"),
    ("", False, None, None),
    ("2", False, None, None),
    ("<answer>2</answer>", False, None, "2"),
    ("<answer>2", False, None, None),
    ("2</answer>", False, None, None),
    ("</answer>2<answer>", False, None, None),
    ("<reasoning>1</reasoning><answer>2", False, None, None),
    ("<answer>2</answer><reasoning>1</reasoning>", False, None, "2"),
    ("<reasoning><answer>2</answer></reasoning>", False, None, "2"),
    ("<reasoning>1<answer></reasoning>2</answer>", False, None, "</reasoning>2"),
    (GOOD + GOOD, False, None, "2"),
    (GOOD + "<answer>3</answer>", False, None, "3"),
    (GOOD + "<answer>3", False, None, "2"),
    (GOOD + "3</answer>", False, None, "2"),
    ("<reasoning>1</reasoning><answer><answer>2</answer>", False, None, "2"),
    ("<reasoning>1</reasoning><answer><answer>2</answer></answer>", False, None, "2"),
    ("<REASONING>1</REASONING><ANSWER>2</ANSWER>", False, None, None),
    ("<reasoning>1</reasoning>< answer>2</answer>", False, None, None),
    ("</reasoning><reasoning><answer>2</answer>", False, None, "2"),
]


@pytest.mark.parametrize(("text", "strict_format", "strict", "presence"), CASES)
def test_table(text: str, strict_format: bool, strict: str | None, presence: str | None) -> None:
    assert is_strict_format(text) is strict_format
    assert extract_answer(text) == strict
    assert extract_answer(text, mode="presence") == presence


@pytest.mark.parametrize(
    ("place", "text", "answer"),
    [
        ("boxed", "<think>First try: \\boxed{42}. Wait, let me check", None),  # cut off while it thinks
        ("last_line", "<think>so x is\n42", None),
        ("hashes", "<think>#### 42", None),
        ("boxed", "<think>\\boxed{41}</think> \\boxed{42}", "42"),
        ("boxed", "\\boxed{41}</think> \\boxed{42}", "42"),  # the prompt began the thoughts
        ("boxed", "no thoughts, \\boxed{42}", "42"),
    ],
)
def test_nothing_is_an_answer_while_thoughts_are_open(place: Any, text: str, answer: str | None) -> None:
    tags = Tags(reasoning="think", place=place)
    assert extract_answer(text, mode="presence", tags=tags) == answer


pieces = st.lists(st.sampled_from([*TAGS, "7", " ", "\n", "x"]), max_size=12).map("".join)


@given(pieces)
def test_presence_is_the_last_complete_pair_without_an_answer_tag_inside(text: str) -> None:
    found = re.findall(r"<answer>((?:(?!</?answer>).)*)</answer>", text, re.DOTALL)
    assert extract_answer(text, mode="presence") == (found[-1].strip() if found else None)


@given(pieces)
def test_strict_is_once_each_and_in_order(text: str) -> None:
    tags = re.findall(r"</?(?:reasoning|answer)>", text)
    assert is_strict_format(text) is (tags == list(TAGS))
    if is_strict_format(text):
        assert extract_answer(text) == extract_answer(text, mode="presence") is not None
    else:
        assert extract_answer(text) is None


@pytest.mark.parametrize("mode", ["strict", "presence"])
def test_megabytes_of_tags_take_linear_time(mode: str) -> None:
    # A backtracking pattern would need hours for each of these.
    for text in ("<answer>" * 200_000, "<reasoning>" * 200_000, "<answer></answer" * 100_000, "</answer>" * 200_000):
        assert extract_answer(text, mode=mode) is None  # type: ignore[arg-type]
