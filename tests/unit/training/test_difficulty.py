"""Levels that follow the accuracy, and prompts that rest, against steps worked by hand."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gtpo_cli.data.order import Asked, PromptOrder
from gtpo_cli.data.prompts import Prompt
from gtpo_cli.recipe import build_recipe
from gtpo_cli.recipe.data import CurriculumRecipe
from gtpo_cli.training.difficulty import Difficulty
from gtpo_cli.training.step import Outcome
from gtpo_cli.types import Problem

CURRICULUM = CurriculumRecipe(raise_at=0.75, lower_at=0.25, over=4)


def prompts_of(*parts: str, levels: int = 3, each: int = 5) -> list[Prompt]:
    return [
        (Problem(f"{part}/{level}.{number}", "q", "1", part=part, level=level), (1, 2))
        for part in parts for level in range(levels) for number in range(each)
    ]  # fmt: skip


def group(prompt: Prompt, *right: int) -> Outcome:
    return Outcome(prompt[0], [bool(one) for one in right])


def at(prompts: list[Prompt], name: str) -> Prompt:
    return next(prompt for prompt in prompts if prompt[0].id == name)


def test_a_level_rises_and_falls_by_hand() -> None:
    prompts = prompts_of("a", "b")
    difficulty = Difficulty(prompts, CURRICULUM)
    assert difficulty.observe([group(at(prompts, "a/0.0"), 1, 1), group(at(prompts, "b/0.0"), 0, 0)]) == {
        "tasks/a/accuracy_rate": 1.0, "tasks/b/accuracy_rate": 0.0, "tasks/a/level": 0.0, "tasks/b/level": 0.0,
    }  # fmt: skip
    difficulty.move()  # only two completions of four
    assert difficulty.levels == {"a": 0, "b": 0}
    difficulty.observe([group(at(prompts, "a/0.1"), 1, 0), group(at(prompts, "b/0.1"), 0, 0)])
    difficulty.move()  # a: 3 of 4 right; b is at the lowest level already
    difficulty.move()  # nothing new is known of it
    assert difficulty.levels == {"a": 1, "b": 0}
    difficulty.observe([group(at(prompts, "a/0.2"), 1, 1, 1, 1)])  # sampled before the level rose: not of this level
    difficulty.move()
    assert difficulty.levels["a"] == 1
    for _ in range(2):
        difficulty.observe([group(at(prompts, f"a/{difficulty.levels['a']}.3"), 1, 1, 1, 1)])
        difficulty.move()
    assert difficulty.levels["a"] == 2  # the highest
    difficulty.observe([group(at(prompts, "a/2.0"), 0, 0, 0, 1)])
    difficulty.move()
    assert difficulty.levels["a"] == 1


def test_only_the_last_so_many_completions_count() -> None:
    prompts = prompts_of("a")
    difficulty = Difficulty(prompts, CURRICULUM)
    difficulty.observe([group(at(prompts, "a/0.0"), 0, 0, 1, 1)])
    difficulty.move()
    assert difficulty.levels == {"a": 0}
    difficulty.observe([group(at(prompts, "a/0.0"), 1)])  # 0 1 1 1
    difficulty.move()
    assert difficulty.levels == {"a": 1}


def test_a_prompt_rests_after_groups_without_a_difference_and_only_in_a_row() -> None:
    prompts = prompts_of("a", levels=1)
    difficulty = Difficulty(prompts, rest_after=2)
    for right in ((1, 1), (0, 1), (0, 0)):
        difficulty.observe([group(prompts[0], *right), group(prompts[3], *right)])
        difficulty.move()
        assert not difficulty.resting
    assert difficulty.observe([group(prompts[3], 1, 1)]) == {"tasks/a/accuracy_rate": 1.0, "tasks/resting": 0.0}
    assert not difficulty.resting  # not before the next generation
    difficulty.move()
    assert difficulty.resting == {3}
    assert difficulty.asked == Asked(None, frozenset({3}))


def test_a_state_goes_on_as_if_it_had_never_been_stored() -> None:
    prompts, draw = prompts_of("a", "b"), random.Random(5)
    one, other = Difficulty(prompts, CURRICULUM, 2), Difficulty(prompts, CURRICULUM, 2)
    for step in range(200):
        asked = [group(draw.choice(prompts), *draw.choices((0, 1), k=2)) for _ in range(3)]
        assert one.observe(asked) == other.observe(asked)
        if step % 3 == 0:
            one.move()
            other.move()
        if step % 7 == 0:
            stored, other = other.state_dict(), Difficulty(prompts, CURRICULUM, 2)
            other.load_state_dict(stored)
        assert (one.levels, one.resting, one.state_dict()) == (other.levels, other.resting, other.state_dict())
    assert len(one.resting) > 3


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ('{"levels": {"c": 0}, "recent": {"c": []}, "alike": {}, "resting": []}', "belong to other tasks"),
        (
            '{"levels": {"a": 3}, "recent": {"a": []}, "alike": {}, "resting": []}',
            "a level that its task does not have",
        ),
        (
            '{"levels": {"a": 0}, "recent": {"a": []}, "alike": {"99": 1}, "resting": []}',
            "prompts that the data do not",
        ),
        ('{"levels": {"a": 0}, "recent": {"a": []}, "alike": {}, "resting": [15]}', "prompts that the data do not"),
    ],
)
def test_a_state_of_other_data_is_refused(state: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Difficulty(prompts_of("a"), CURRICULUM).load_state_dict(state)


def order_of(prompts: list[Prompt], *, prompts_per_step: int = 4) -> PromptOrder:
    document = {
        "model": {"name": "builtin:tiny"}, "data": {"mixture": {"arithmetic": 3, "word_problems": 1}},
        "rollout": {"prompts_per_step": prompts_per_step}, "training": {"max_steps": 9},
    }  # fmt: skip
    return PromptOrder(build_recipe(document, where="test"), prompts)


def test_a_step_asks_each_part_at_its_level_and_by_its_weight() -> None:
    prompts = prompts_of("arithmetic", "word_problems")
    order = order_of(prompts)
    asked = Asked({"arithmetic": 2, "word_problems": 1})
    steps = [order.numbers(number, asked) for number in range(1, 401)]
    assert all(len(set(step)) == 4 for step in steps)
    drawn = Counter((prompts[place][0].part, prompts[place][0].level) for step in steps for place in step)
    assert set(drawn) == {("arithmetic", 2), ("word_problems", 1)}
    assert drawn["arithmetic", 2] / 1600 == pytest.approx(0.75, abs=0.05)
    assert [order_of(prompts).numbers(number, asked) for number in range(1, 401)] == steps  # of the number alone


def test_others_take_the_place_of_prompts_that_rest() -> None:
    prompts = prompts_of("arithmetic", levels=1, each=12)
    order = order_of(prompts)
    usual = order.numbers(1)
    resting = frozenset(usual[:2])
    found = order.numbers(1, Asked(None, resting))
    assert found[:2] == usual[2:]
    assert len(set(found)) == 4
    assert not resting & set(found)
    assert sorted(order.numbers(1, Asked(None, frozenset(range(12))))) != []  # all rest: somebody is asked
    assert {prompt[0].id for prompt in order.more(1, 0, 4, asked=Asked(None, resting))} <= {
        prompt[0].id for place, prompt in enumerate(prompts) if place not in resting
    }
