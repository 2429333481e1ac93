"""What would make a run shorter, by the plan's own hours."""

from __future__ import annotations

from functools import partial

import pytest

from gtpo_cli.models import Engines
from gtpo_cli.planning.cards import GIB, Card, find_gpu
from gtpo_cli.planning.duration import Hours, estimate
from gtpo_cli.planning.memory import Memory, best_memory, fits, memory_of
from gtpo_cli.planning.open_keys import closed, machine_with
from gtpo_cli.planning.savings import BASE, Saving, base_words, changes, faster_base, in_words, most_saving
from gtpo_cli.planning.shapes import PUBLISHED
from gtpo_cli.recipe import Recipe, load_recipe

LLAMA = PUBLISHED["meta-llama/Llama-3.1-8B-Instruct"]
SHARED = Engines("unsloth", "vllm", True)


def found_on(gpu: str, *overrides: str) -> tuple[Recipe, Hours, tuple[Saving, ...]]:
    """The paper's run on a card: the recipe, its hours, and what would change them."""
    card = find_gpu(gpu)
    assert isinstance(card, Card)
    recipe = load_recipe("llama8b_gsm8k", list(overrides))

    def hours(of: Recipe, memory: Memory) -> Hours:
        return estimate(
            of, LLAMA, SHARED, memory, cards=[card], steps=7473, completions=8 * 7473, prompt_tokens=287,
            completion_tokens=300,
        )  # fmt: skip

    on_card = closed(recipe, machine_with(card), LLAMA)
    memory = best_memory(partial(memory_of, on_card, LLAMA, SHARED, prompt_tokens=287), 1500, card.memory)
    assert memory is not None
    found = changes(recipe, LLAMA, SHARED, card, prompt_tokens=287, completion_tokens=1500, hours=hours)
    return recipe, hours(on_card, memory), found


def test_more_steps_a_generation_save_most() -> None:
    for gpu in ("h100", "l4"):
        _, now, found = found_on(gpu)
        most = most_saving(found, now)
        assert most is not None
        assert most.values["rollout.steps_per_generation"] == 8
        assert most.hours.middle < now.middle / 2
        assert [change.hours.middle for change in found] == sorted(change.hours.middle for change in found)


def test_what_is_offered_fits_and_takes_the_hours_that_it_says() -> None:
    """On an L4 the paper's share does not hold 64 completions, so that a larger one goes along."""
    recipe, _, found = found_on("l4")
    ahead = next(change for change in found if change.keys == {"rollout.steps_per_generation"})
    assert ahead.values["rollout.gpu_memory_utilization"] > 0.4
    for change in found:
        tried = closed(recipe.with_values(change.values), machine_with(22.1 * GIB), LLAMA)
        memory = memory_of(tried, LLAMA, SHARED, prompt_tokens=287, completion_tokens=1500, gpu=22.1 * GIB, limit=1)
        assert fits(memory, 22.1 * GIB)
        assert BASE not in change.values  # 15 GiB of weights beside the rest do not


def test_both_bases_are_compared_for_the_recipe_and_for_more_steps_a_generation() -> None:
    recipe, now, found = found_on("h100")
    own, ahead = base_words(recipe, found, now)
    assert own.startswith(f"4 bits {now} h, 16 bits ")
    assert own.endswith("(model.load_in_4bit: false): about as fast")
    assert ahead.endswith("(rollout.steps_per_generation: 8, model.load_in_4bit: false): 16 bits are faster")
    assert faster_base(found, now) is None
    assert list(base_words(*(of := found_on("l4"))[::2], of[1])) == []
    recipe, now, found = found_on("h100", "rollout.steps_per_generation=8")
    (words,) = base_words(recipe, found, now)
    assert words.endswith("16 bits are faster")
    faster = faster_base(found, now)
    assert faster is not None
    assert faster.values == {BASE: False}


def test_nothing_is_named_that_saves_less_than_a_tenth() -> None:
    now = Hours(10, 10, ("a",))
    assert most_saving((Saving({"a.b": 1}, Hours(9.1, 9.1, ("a",))),), now) is None
    change = Saving({"a.b": 1}, Hours(8.9, 8.9, ("a",)))
    assert most_saving((Saving({}, Hours(1, 1, ("a",))), change), now) == change
    assert str(change) == "a.b: 1"
    assert now.middle == pytest.approx(10)


def test_less_than_an_hour_is_in_minutes() -> None:
    assert in_words(Hours(0.0038, 0.016, ("a",))) == "0.23 to 0.96 min"
    assert in_words(Hours(0.5, 2, ("a",))) == "0.5 to 2 h"
