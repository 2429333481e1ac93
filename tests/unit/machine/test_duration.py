"""The estimate of a run's hours by hand, against the measured run, and the names of cards."""

from __future__ import annotations

import re

import huggingface_hub.constants
import pytest

from gtpo_cli.job import Engines
from gtpo_cli.machine.fit import (
    LAUNCH,
    MULTIPLY,
    READ,
    CpuNeed,
    cpu_need,
    make_plan,
    step_seconds,
    weight_traffic,
)
from gtpo_cli.machine.installed import CARDS, GIB, Card, find_gpu
from gtpo_cli.machine.memory import memory_of
from gtpo_cli.machine.shapes import PUBLISHED, ModelShape
from gtpo_cli.recipe import load_recipe, shipped_recipes

LLAMA = PUBLISHED["meta-llama/Llama-3.1-8B-Instruct"]
SMOLLM = ModelShape(30, 576, 1536, 9, 3, 64, 49152, tied=True)
SHARED, PLAIN = Engines("unsloth", "vllm", True), Engines("transformers", "transformers", False)
LINEAR, ALL, HEAD, ADAPTER = 6_979_321_856, 8_030_261_248, 128256 * 4096, 335_544_320


def card(name: str) -> Card:
    return next(card for card in CARDS if name in (card.short, card.name))


def seconds(name: str, engines: Engines, *overrides: str, completions: float = 8, mean: int = 1500, gpu: str = "h100"):
    recipe = load_recipe(name, list(overrides))
    memory = memory_of(recipe, LLAMA, engines, prompt_tokens=287, completion_tokens=1500, gpu=80 * GIB)
    return step_seconds(
        recipe, LLAMA, engines, memory, card(gpu), completions=completions, prompt_tokens=287, completion_tokens=mean
    )


def test_traffic_by_hand() -> None:
    """4-bit weights: written in 16 bits and read again on HBM, and elsewhere as far as there are rows."""
    four_bit, sixteen = (load_recipe("llama8b_gsm8k", [f"model.load_in_4bit={bits}"]).model for bits in (True, False))
    beside = 2 * (HEAD + ADAPTER)
    assert weight_traffic(sixteen, LLAMA, card("h100"), 8) == 2 * LINEAR + beside
    assert weight_traffic(four_bit, LLAMA, card("h100"), 1) == 4.5625 * LINEAR + beside
    assert weight_traffic(four_bit, LLAMA, card("4090"), 24) == (0.5625 + 1) * LINEAR + beside
    assert weight_traffic(four_bit, LLAMA, card("4090"), 200) == 4.5625 * LINEAR + beside


def test_a_step_by_hand() -> None:
    """16 bits, all completions as long as they may be: 1,500 passes of 8, whose cache is half full in the mean."""
    cache = 8 * (287 + 750) * 2 * 32 * 8 * 128 * 2
    decode = (2 * (LINEAR + HEAD + ADAPTER) + cache) / (READ * 1935e9)
    train = (8 * 1500 + 287) * 6 * ALL / (MULTIPLY * 312e12)  # forward, again, and back
    step = seconds("llama8b_gsm8k", PLAIN, "model.load_in_4bit=false", gpu="a100-80gb")
    assert step == pytest.approx(1500 * (decode + 32 * LAUNCH[False]) + train)
    eager = seconds("llama8b_gsm8k", SHARED, "rollout.vllm.enforce_eager=true")
    assert eager - seconds("llama8b_gsm8k", SHARED) == pytest.approx(1500 * 32 * (LAUNCH[False] - LAUNCH[True]))


def test_sft_only_trains_and_reads_the_weights_at_least_once_a_pass() -> None:
    sft = ["objective.name=sft", "objective.entropy_coef=0", "rollout.steps_per_generation=1"]
    expected = (500 + 287) * 6 * ALL / (MULTIPLY * 989e12)
    assert seconds("llama8b_gsm8k", SHARED, *sft, completions=1, mean=500) == pytest.approx(expected)
    floor = 3 * (4.5625 * LINEAR + 2 * (HEAD + ADAPTER)) / (READ * 3350e9)
    recipe = load_recipe("llama8b_gsm8k", sft)
    memory = memory_of(recipe, LLAMA, SHARED, prompt_tokens=1, completion_tokens=1, gpu=80 * GIB)
    short = step_seconds(
        recipe, LLAMA, SHARED, memory, card("h100"), completions=1, prompt_tokens=1, completion_tokens=1
    )
    assert short == pytest.approx(floor)


def test_what_would_save_most_fits_and_takes_the_hours_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an L4 the paper's share does not hold 64 completions, so that a larger one goes along."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    plan = make_plan(load_recipe("llama8b_gsm8k"), gpu=card("l4"))
    saving = plan.saving
    assert saving is not None
    share = saving.values["rollout.gpu_memory_utilization"]
    assert saving.values == {"rollout.steps_per_generation": 8, "rollout.gpu_memory_utilization": share}
    assert share > 0.4
    changed = make_plan(load_recipe("llama8b_gsm8k").with_values(saving.values), gpu=card("l4"))
    assert changed.fits
    assert changed.hours[0][1] == saving.hours
    assert saving.hours.most < 0.8 * plan.hours[0][1].most
    assert str(saving) == f"rollout.steps_per_generation: 8, rollout.gpu_memory_utilization: {share}"
    assert changed.saving is None or "rollout.steps_per_generation" not in changed.saving.values


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


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("a100", "'a100' is 2 sizes: write a100-40gb or a100-80gb"),
        ("4060", "nor a card in the table"),  # which is not the Ti
        ("2080", "nor a card in the table"),  # and no GPU has so many GiB
        ("l40", "nor a card in the table"), ("big", "write e.g. 24GiB"), ("0", "is neither a size"),
        ("", "is neither a size"), ("rtx", "is neither a size"),
        ("-24", "is neither a size"), ("nan", "is neither a size"),
    ],
)  # fmt: skip
def test_what_is_no_gpu(typed: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        find_gpu(typed)


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


# -- without a GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "steps", "completions"),
    [
        ("smollm135m_words", 40, 40 * 64), ("smollm135m_words_sft", 40, 40 * 2),
        ("smollm135m_tasks", 20, 20 * 64), ("smollm135m_tasks_sft", 80, 80 * 4),
    ],
)  # fmt: skip
def test_the_measured_recipes_of_a_real_model_are_in_their_range(name: str, steps: int, completions: int) -> None:
    """Completions were 25 tokens long in the mean, prompts about 100."""
    check(name, cpu_need(
        load_recipe(name), SMOLLM, steps=steps, completions=completions, prompt_tokens=100, longest_completion=64,
        mean_completion=25,
    ))  # fmt: skip


def check(name: str, need: CpuNeed) -> None:
    said = re.search(r"Needs ([\d.]+) GiB RAM; ([\d.]+) min", shipped_recipes()[name].read_text())
    assert said is not None
    ram, minutes = map(float, said.groups())
    assert need.ram[0] / GIB - 0.05 < ram < need.ram[1] / GIB + 0.05
    assert need.minutes[0] < minutes < need.minutes[1]
