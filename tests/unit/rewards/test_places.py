r"""Answers in boxes, behind hashes and behind `Answer:`: what is read, and what the format earns."""

from __future__ import annotations

import pytest

from gtpo_cli.data import wrap_solution
from gtpo_cli.recipe import build_recipe
from gtpo_cli.recipe.data import PAPER_SYSTEM_PROMPT, PRESETS
from gtpo_cli.rewards import Tags, extract_answer, format_reward, is_strict_format
from gtpo_cli.rewards.extract import boxes
from gtpo_cli.types import Place

# text, answer in strict mode, answer in presence mode, format in strict mode, format in presence mode
BOXED = [
    (r"So it is $\boxed{5}$.", "5", "5", 10, 10),
    (r"\[\boxed{\frac{1}{2}}\]", r"\frac{1}{2}", r"\frac{1}{2}", 10, 10),
    (r"\begin{align*} x &= \boxed{3} \end{align*}", "3", "3", 10, 10),
    (r"$\boxed{-2}$ and $\boxed{1}$.", "-2, 1", "-2, 1", 10, 10),
    (r"$k = \boxed{5}$ or $k = \boxed{-3}.$", "5, -3", "5, -3", 10, 10),
    (r"\boxed{1}, \boxed{2}, and \boxed{3}", "1, 2, 3", "1, 2, 3", 10, 10),
    (r"\boxed{4}. Wait, it is \boxed{5}", None, "5", 1, 10),  # two answers
    (r"\boxed{5} is the answer.", None, "5", 1, 10),  # not at the end
    (r"\boxed{5} \boxed{6", None, "5", 1, 10),  # the last one is cut off
    (r"It is \boxed{6", None, None, 0, 0),
    (r"\boxed{}", "", "", 10, 10),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}", r"\{1, 2\}", 10, 10),
    ("It is 5.", None, None, 0, 0),
]
HASHES = [
    ("1+1=2\n#### 2", "2", "2", 10, 10),
    ("1+1=2 #### 1,000\n", "1,000", "1,000", 10, 10),
    ("#### 2\nor\n#### 3", None, "3", 1, 10),
    ("#### 2\nis it", None, "2", 1, 10),
    ("####", None, None, 0, 0),
]
LINES = [
    ("1+1=2\nAnswer: 2", "2", "2", 10, 10),
    ("**Final Answer:** 42\n", "42", "42", 10, 10),
    ("Answer:\n7", "7", "7", 10, 10),
    ("Answer: 1\nNo.\nAnswer: 2", None, "2", 1, 10),
    ("Answer: 2\nI hope this helps.", None, "2", 1, 10),
    ("1+1=2\n\n2\n", None, "2", 0, 0),  # the last line, in presence mode
    ("", None, None, 0, 0),
]


@pytest.mark.parametrize(
    ("place", "text", "strict", "presence", "strict_format", "presence_format"),
    [(place, *row) for place, rows in (("boxed", BOXED), ("hashes", HASHES), ("last_line", LINES)) for row in rows],
)
def test_what_is_read_and_what_the_format_earns(
    place: Place, text: str, strict: str | None, presence: str | None, strict_format: int, presence_format: int
) -> None:
    tags = Tags(reasoning=None, place=place)
    assert extract_answer(text, tags=tags) == strict
    assert extract_answer(text, mode="presence", tags=tags) == presence
    assert format_reward(text, tags=tags) == strict_format
    assert format_reward(text, mode="presence", tags=tags) == presence_format
    assert is_strict_format(text, tags=tags) is (strict_format == 10)


def test_with_a_reasoning_tag_the_answer_follows_it() -> None:
    tags = Tags(reasoning="think", place="boxed")
    right = r"<think>Is it \boxed{1}? No.</think>It is \boxed{2}."
    assert extract_answer(right, tags=tags) == "2"
    assert format_reward(right, tags=tags) == 10
    for text in (r"It is \boxed{2}.", r"<think>1</think>", right.replace("</think>", "")):
        assert extract_answer(text, tags=tags) is None
        assert format_reward(text, tags=tags) == 1


def test_a_reference_gives_the_answer_once() -> None:
    boxed = Tags(reasoning=None, place="boxed")
    assert wrap_solution(r"It is $\boxed{5}$.", "5", tags=boxed) == r"It is $\boxed{5}$."
    assert wrap_solution("1+4=5", "5", tags=boxed) == "1+4=5\n\\boxed{5}"
    assert wrap_solution("", "5", tags=boxed) == r"\boxed{5}"
    assert wrap_solution("1+4=5", "5", tags=Tags(None, place="hashes")) == "1+4=5\n#### 5"
    assert wrap_solution("1+4=5", "5", tags=Tags(None, place="last_line")) == "1+4=5\nAnswer: 5"
    assert wrap_solution("1+4=5", "5", tags=Tags("think", place="boxed")) == r"<think>1+4=5</think>\boxed{5}"
    for place in ("boxed", "hashes", "last_line"):
        tags = Tags(None, place=place)
        assert extract_answer(wrap_solution("1+4=5", "5", tags=tags), tags=tags) == "5"


def test_the_place_decides_prompt_and_reasoning_tag_unless_the_recipe_does() -> None:
    def recipe(*overrides: str) -> tuple[str | None, str | None]:
        made = build_recipe({"model": {"name": "x/y"}, "data": {"benchmark": "gsm8k"}}, overrides, where="r")
        return made.data.system_prompt, made.rewards.tags.reasoning

    assert recipe() == (PAPER_SYSTEM_PROMPT, "reasoning")
    assert recipe("rewards.answer=boxed") == (PRESETS["qwen_boxed"], None)
    assert recipe("rewards.answer=hashes") == (PRESETS["verl_hashes"], None)
    assert recipe("rewards.answer=last_line", "data.system_prompt_preset=none") == (None, None)
    own = recipe("rewards.answer=boxed", "rewards.format.tags.reasoning=think", "data.system_prompt=Box it.")
    assert own == ("Box it.", "think")
    with pytest.raises(Exception, match=r"data\.system_prompt_preset: data\.system_prompt has a text of its own"):
        recipe("data.system_prompt=x", "data.system_prompt_preset=gtpo")
    with pytest.raises(Exception, match=r"the default asks for <reasoning> and <answer>, but the rewards look for"):
        recipe("rewards.answer=boxed", "data.system_prompt_preset=gtpo")


def test_hostile_texts_are_read_in_linear_time() -> None:
    for text in (r"\boxed{" * 50_000, r"\boxed{1}" + " " * 200_000 + r"\boxed{2}", "####" * 50_000, "answer:" * 50_000):
        for place in ("boxed", "hashes", "last_line"):
            extract_answer(text, mode="presence", tags=Tags(None, place=place))
            format_reward(text, tags=Tags(None, place=place))
    assert boxes(r"\boxed{" * 50_000) == []
