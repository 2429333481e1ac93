"""The estimate of a run's hours, worked by hand on the paper's model."""

from __future__ import annotations

import pytest

from gtpo_cli.models import Engines
from gtpo_cli.planning.duration import CARDS, LAUNCH, MULTIPLY, READ, Hours, cards_of, estimate, step_seconds
from gtpo_cli.planning.memory import GIB, memory_of
from gtpo_cli.planning.shapes import PUBLISHED
from gtpo_cli.recipe import load_recipe

LLAMA = PUBLISHED["meta-llama/Llama-3.1-8B-Instruct"]
SHARED, PLAIN = Engines("unsloth", "vllm", True), Engines("transformers", "transformers", False)
A100 = next(card for card in CARDS if card.name == "A100 80GB")
LINEAR, ALL, HEAD = 6_979_321_856, 8_030_261_248, 128256 * 4096


def seconds(name: str, engines: Engines, *overrides: str, completions: float = 8) -> float:
    recipe = load_recipe(name, list(overrides))
    memory = memory_of(recipe, LLAMA, engines, prompt_tokens=300, completion_tokens=1500, gpu=80 * GIB)
    return step_seconds(
        recipe, LLAMA, engines, memory, A100, completions=completions, prompt_tokens=300, completion_tokens=500
    )


def test_a_step_by_hand() -> None:
    """Eight completions of 500 tokens: 4-bit weights read, written and read in 16 bits, the cache of half the way."""
    cache = 8 * (300 + 250) * 2 * 32 * 8 * 128 * 2
    decode = (LINEAR * 4.5 + HEAD * 2 + cache) / (READ * 1935e9)
    train = (8 * 500 + 300) * 6 * ALL / (MULTIPLY * 312e12)  # forward, again, and back
    assert seconds("llama8b_gsm8k", SHARED) == pytest.approx(500 * decode + train)
    launches = 500 * 32 * LAUNCH
    assert seconds("llama8b_gsm8k", PLAIN) == pytest.approx(500 * decode + launches + train)


def test_what_makes_a_step_longer() -> None:
    usual = seconds("llama8b_gsm8k", SHARED)
    training = (8 * 500 + 300) * 6 * ALL / (MULTIPLY * 312e12)
    assert seconds("llama8b_gsm8k", SHARED, "objective.num_iterations=2") == pytest.approx(usual + training)
    assert seconds("llama8b_gsm8k", SHARED, "objective.kl_coef=0.1") == pytest.approx(usual + training / 3)
    assert seconds("llama8b_gsm8k", SHARED, "model.gradient_checkpointing=false") == pytest.approx(usual - training / 3)
    assert seconds("llama8b_gsm8k", SHARED, "model.load_in_4bit=false") < usual  # no copies in 16 bits
    few = seconds("llama8b_gsm8k", SHARED, "rollout.gpu_memory_utilization=0.095")
    assert few > 1.8 * usual  # in two turns


def test_sft_only_trains() -> None:
    sft = ["objective.name=sft", "objective.entropy_coef=0"]
    expected = (500 + 300) * 6 * ALL / (MULTIPLY * 312e12)
    assert seconds("llama8b_gsm8k", SHARED, *sft, completions=1) == pytest.approx(expected)


def test_a_run_on_the_cards_of_a_size() -> None:
    recipe = load_recipe("llama8b_gsm8k")
    memory = memory_of(recipe, LLAMA, SHARED, prompt_tokens=300, completion_tokens=1500, gpu=80 * GIB)
    hours = estimate(
        recipe, LLAMA, SHARED, memory, gpu=79.1 * GIB, steps=7473, completions=8 * 7473, prompt_tokens=300,
        completion_tokens=500,
    )  # fmt: skip
    assert hours.slowest == pytest.approx(7473 * seconds("llama8b_gsm8k", SHARED) / 3600)
    assert hours.cards == ("H100 SXM", "A100 80GB")
    assert hours.fastest < hours.slowest
    assert [card.size for card in cards_of(22 * GIB)] == [24, 24]


def test_how_hours_read() -> None:
    assert str(Hours(11.3, 122, ("a", "b"))) == "11 to 120"
    assert str(Hours(1212, 1249, ("a",))) == "1,200"
    assert str(Hours(0.123, 9.81, ("a", "b"))) == "0.12 to 9.8"
