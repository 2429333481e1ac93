"""The estimate of a run's hours, worked by hand on the paper's model."""

from __future__ import annotations

import huggingface_hub.constants
import pytest

from gtpo_cli.models import Engines
from gtpo_cli.planning.cards import CARDS, GIB, Card, cards_of, find_gpu
from gtpo_cli.planning.duration import LAUNCH, MULTIPLY, READ, Hours, estimate, step_seconds
from gtpo_cli.planning.fit import make_plan
from gtpo_cli.planning.memory import memory_of
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
        recipe, LLAMA, SHARED, memory, cards=cards_of(79.1 * GIB), steps=7473, completions=8 * 7473, prompt_tokens=300,
        completion_tokens=500,
    )  # fmt: skip
    assert hours.slowest == pytest.approx(7473 * seconds("llama8b_gsm8k", SHARED) / 3600)
    assert hours.cards == ("H100 SXM", "A100 80GB")
    assert hours.fastest < hours.slowest
    assert {card.size for card in cards_of(22 * GIB)} == {24}
    assert "T4" not in {card.name for card in cards_of(16 * GIB)}  # a plan for a size counts on bfloat16


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("4090", "RTX 4090"), ("rtx4090", "RTX 4090"), ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("h100", "H100 SXM"),
        ("H100-SXM", "H100 SXM"), ("Tesla T4", "T4"), ("a100-40gb", "A100 40GB"), ("A100 80", "A100 80GB"),
        ("4060 Ti", "RTX 4060 Ti"), ("L4", "L4"), ("h200", "H200"),
    ],
)  # fmt: skip
def test_a_card_by_its_name(typed: str, name: str) -> None:
    found = find_gpu(typed)
    assert isinstance(found, Card)
    assert found.name == name


def test_every_card_is_found_by_both_its_names() -> None:
    assert [find_gpu(card.short) for card in CARDS] == [find_gpu(card.name) for card in CARDS] == list(CARDS)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("a100", "'a100' is 2 sizes: write a100-40gb or a100-80gb"),
        ("4060", "no card in the table"),  # which is not the Ti
        ("2080", "no card in the table"),  # and no GPU has so many GiB
        ("l40", "no card in the table"), ("big", "write e.g. 24GiB"), ("0", "is no size"), ("", "is no size"),
        ("rtx", "is no size"), ("-24", "is no size"), ("nan", "is no size"),
    ],
)  # fmt: skip
def test_what_is_no_gpu(typed: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        find_gpu(typed)


def test_sizes() -> None:
    assert [find_gpu(text) for text in ("24", "24GB", "24 gib", "24G", "7.5GiB")] == [24 * GIB] * 4 + [7.5 * GIB]


def test_a_card_without_bfloat16_is_planned_in_float32_with_the_memory_that_cuda_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T4: what `model.dtype: auto` comes to there, so no Unsloth; its float32 rate, and 14.7 GiB of its 16."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    t4 = find_gpu("t4")
    recipe = load_recipe("tiny_arithmetic")
    auto, said = (make_plan(load_recipe("tiny_arithmetic", [f"model.dtype={d}"]), gpu=t4) for d in ("auto", "float32"))
    assert (auto.gpu, auto.card, auto.memory) == (14.7 * GIB, t4, said.memory)
    assert auto.memory.peak > make_plan(recipe, gpu=14.7 * GIB).memory.peak
    assert "T4 has no bfloat16" in auto.notes[0]
    llama = make_plan(load_recipe("llama8b_gsm8k"), gpu=t4, read_data=False)
    assert str(llama.engines) == "transformers"
    assert isinstance(t4, Card)
    float32 = load_recipe("llama8b_gsm8k", ["model.dtype=float32", "objective.name=sft", "objective.entropy_coef=0"])
    memory = memory_of(float32, LLAMA, PLAIN, prompt_tokens=300, completion_tokens=1500, gpu=t4.memory)
    step = step_seconds(float32, LLAMA, PLAIN, memory, t4, completions=1, prompt_tokens=300, completion_tokens=500)
    assert step == pytest.approx(800 * 6 * ALL / (MULTIPLY * 8.1e12))


def test_how_hours_read() -> None:
    assert str(Hours(11.3, 122, ("a", "b"))) == "11 to 120"
    assert str(Hours(1212, 1249, ("a",))) == "1,200"
    assert str(Hours(0.123, 9.81, ("a", "b"))) == "0.12 to 9.8"
