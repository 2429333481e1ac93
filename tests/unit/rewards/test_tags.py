"""Tags of a recipe's own: they mean what the paper's mean, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe import build_recipe
from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.rewards import Scorer, Tags, accuracy_reward, extract_answer, format_reward, is_strict_format
from gtpo_cli.rewards.equality import EqualityWorkers, same_text
from gtpo_cli.rewards.extract import TAGS, FormatMode, tag_texts
from gtpo_cli.types import Completion, Problem

MODES: tuple[FormatMode, ...] = ("strict", "presence")
OTHERS = Tags(reasoning="think", answer="json.v-2")
SMALLEST = {"model": {"name": "some/model"}, "data": {"benchmark": "gsm8k"}}

pieces = st.lists(st.sampled_from([*TAGS, "7", " ", "\n", "x", "<", ">", "</", "reasoning"]), max_size=12).map("".join)


def renamed(text: str) -> str:
    for ours, theirs in zip(TAGS, tag_texts(OTHERS), strict=True):
        text = text.replace(ours, theirs)
    return text


@given(pieces, st.sampled_from(MODES))
def test_renamed_tags_give_what_the_papers_give(text: str, mode: FormatMode) -> None:
    other = renamed(text)
    assert is_strict_format(other, tags=OTHERS) == is_strict_format(text)
    answer, expected = extract_answer(other, mode=mode, tags=OTHERS), extract_answer(text, mode=mode)
    assert answer == (None if expected is None else renamed(expected))
    assert format_reward(other, mode=mode, tags=OTHERS) == format_reward(text, mode=mode)
    assert accuracy_reward(other, "7", mode=mode, tags=OTHERS) == accuracy_reward(text, "7", mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_the_papers_tags_are_nothing_to_other_ones(mode: FormatMode) -> None:
    text = "<reasoning>a</reasoning><answer>7</answer>"
    assert extract_answer(text, mode=mode, tags=OTHERS) is None
    assert format_reward(text, mode=mode, tags=OTHERS) == 0.0
    assert extract_answer(text, mode=mode) == "7"


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("positive", "positive", True),
        ("positive", "Positive", False),
        ("a  b\nc", " a b c ", True),
        ("a b", "ab", False),
        ("1", "1.0", False),
        ("", "", False),
        ("A long summary, with commas_and $5.", "A long summary, with commas_and $5.", True),
    ],
)
def test_text_is_compared_as_it_is_written(gold: str, answer: str, same: bool) -> None:
    assert same_text(gold, answer) is same
    workers = EqualityWorkers(equality="text")
    assert [grade.equal for grade in workers.equal_many([(gold, answer)])] == [same]
    assert workers.usable_many([gold]) == [bool(gold.strip())]
    assert workers.process_ids() == []
    text = f"<reasoning></reasoning><answer>{answer}</answer>"
    assert accuracy_reward(text, gold, equality="text") == (10.0 if same else 0.0)


def test_a_scorer_reads_the_recipes_tags_and_compares_as_it_says() -> None:
    recipe = RewardsRecipe.model_validate(
        {"format": {"tags": {"reasoning": None, "answer": "json"}}, "accuracy": {"equality": "text"}}
    )
    texts = ("<json>2.0</json>", "<json>2</json>", "<answer>2</answer>")
    completions = [Completion((), (), "stop", text) for text in texts]
    with Scorer(recipe) as scorer:
        problem = Problem("p", "1+1", "2")
        scorer.begin(problem, completions[0])
        verdicts = scorer.score(problem, completions)
    assert [verdict.reward for verdict in verdicts] == [10.0, 20.0, 0.0]
    assert [verdict.strict_format for verdict in verdicts] == [True, True, False]
    assert [verdict.extracted for verdict in verdicts] == ["2.0", "2", None]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["rewards.format.tags.answer=<answer>"],
            r"rewards.format.tags.answer: string should match pattern .*<answer>",
        ),
        (["rewards.format.tags.answer=a b"], r"rewards.format.tags.answer: string should match pattern"),
        (["rewards.format.tags.answer=''"], r"rewards.format.tags.answer: string should match pattern"),
        (["rewards.format.tags.answer=null"], r"rewards.format.tags.answer: input should be a valid string"),
        ([f"rewards.format.tags.answer={'a' * 65}"], r"rewards.format.tags.answer: string should match pattern"),
        (["rewards.format.tags.anser=json"], r"rewards.format.tags.anser: unknown key; did you mean .*tags.answer\?"),
        (
            ["rewards.format.tags.answer=reasoning", "data.system_prompt=null"],
            "rewards.format.tags: reasoning and answer are both reasoning; name two different tags",
        ),
        (["rewards.format.tags.answer=json"], "data.system_prompt: the default asks for <reasoning> and <answer>"),
    ],
)
def test_tags_that_cannot_be_meant(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build_recipe(SMALLEST, overrides, where="r.yaml")
