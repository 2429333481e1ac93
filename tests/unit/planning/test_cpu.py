"""What a run takes without a GPU, against what was measured on one core."""

from __future__ import annotations

import re

import pytest

from gtpo_cli.planning.cards import GIB
from gtpo_cli.planning.cpu import OFF, OTHER, PROCESS, SAMPLING, TRAINING, CpuNeed, cpu_need
from gtpo_cli.planning.fit import make_plan
from gtpo_cli.planning.shapes import ModelShape
from gtpo_cli.recipe import load_recipe, shipped_recipes

SMOLLM = ModelShape(30, 576, 1536, 9, 3, 64, 49152, tied=True)


@pytest.mark.parametrize(
    ("name", "completions", "mean"), [("smollm135m_words", 40 * 64, 25), ("smollm135m_words_sft", 40 * 2, 25)]
)
def test_the_measured_recipes_of_a_real_model_are_in_their_range(name: str, completions: int, mean: int) -> None:
    """Completions were 25 tokens long in the mean, prompts about 100."""
    need = cpu_need(
        load_recipe(name), SMOLLM, steps=40, completions=completions, prompt_tokens=100, longest_completion=64,
        mean_completion=mean,
    )  # fmt: skip
    check(name, need)


def test_the_built_in_task_is_in_its_range() -> None:
    plan = make_plan(load_recipe("tiny_arithmetic"), gpu=None)
    check("tiny_arithmetic", plan.cpu[0][1])
    assert plan.hours == ()


def test_several_steps_a_generation_take_about_as_long_on_a_cpu() -> None:
    """The 600 steps of the built-in model took 2.9 minutes with 4 steps a generation."""
    (_, need), *_ = make_plan(load_recipe("tiny_arithmetic", ["rollout.steps_per_generation=4"]), gpu=None).cpu
    assert need.minutes[0] < 2.9 < need.minutes[1]


def check(name: str, need: CpuNeed) -> None:
    said = re.search(r"Needs ([\d.]+) GiB RAM; ([\d.]+) min", shipped_recipes()[name].read_text())
    assert said is not None
    ram, minutes = map(float, said.groups())
    assert need.ram[0] / GIB - 0.05 < ram < need.ram[1] / GIB + 0.05
    assert need.minutes[0] < minutes < need.minutes[1]


def test_minutes_and_ram_by_hand() -> None:
    """SFT: 3 references of 20 tokens with prompts of 100; an adapter without checkpointing, forward and back."""
    recipe = load_recipe("smollm135m_words_sft")
    need = cpu_need(
        recipe, SMOLLM, steps=3, completions=3, prompt_tokens=100, longest_completion=64, mean_completion=20
    )
    minutes = 360 * 4 * SMOLLM.parameters / TRAINING / 60
    assert need.minutes == pytest.approx((minutes / OFF, minutes * OFF))
    assert need.ram[1] - PROCESS == pytest.approx(OTHER * (need.ram[0] - PROCESS))
    assert TRAINING > SAMPLING
    assert str(CpuNeed((0.58 * GIB, 0.62 * GIB), (0.65, 2.6))) == "0.65 to 2.6 min, 0.58 to 0.62 GiB of RAM"
