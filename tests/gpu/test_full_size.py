"""Training steps at the size of the paper's models, with random weights in 4 bits; memory against `gtpo plan`."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from shaped_model import shaped_policy
from shaped_steps import steps_of

from gtpo_cli.job import Engines
from gtpo_cli.machine.installed import GIB
from gtpo_cli.machine.memory import CONTEXT, memory_of
from gtpo_cli.machine.shapes import PUBLISHED, ModelShape
from gtpo_cli.policy.packing import training_budget
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.training.trials import stress_step
from gtpo_cli.types import Problem

RECIPES = {"llama8b_gsm8k": 36 * GIB, "qwen3b_gsm8k": 16 * GIB}  # and the least free memory to try
PROMPT = 287


@pytest.fixture(scope="module", params=list(RECIPES))
def loaded(request: pytest.FixtureRequest) -> Iterator[tuple[Recipe, ModelShape, TransformersPolicy]]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    pytest.importorskip("bitsandbytes", reason="4-bit weights need bitsandbytes")
    free, _ = torch.cuda.mem_get_info()
    if free < RECIPES[request.param]:
        pytest.skip(f"{free / GIB:.0f} GiB of GPU memory are free, too few for this shape")
    recipe = load_recipe(request.param)
    shape = PUBLISHED[recipe.model.name]
    yield recipe, shape, shaped_policy(shape, recipe, torch.device("cuda"), torch.bfloat16)
    gc.collect()
    torch.cuda.empty_cache()


def test_steps_train_the_adapter_and_nothing_else(loaded: tuple[Recipe, ModelShape, TransformersPolicy]) -> None:
    _, _, policy = loaded
    steps_of(policy, steps=2, completion=64)


def test_memory_is_as_planned(loaded: tuple[Recipe, ModelShape, TransformersPolicy]) -> None:
    """The stress step at the recipe's longest row: its peak within 15 % of the plan."""
    recipe, shape, policy = loaded
    prompts = [(Problem("p", "q", "1"), tuple(8 + k % 80 for k in range(PROMPT)))]
    completion = recipe.rollout.max_completion_tokens
    micro = training_budget("auto", longest_row=PROMPT + completion, warn=print)
    torch.cuda.reset_peak_memory_stats()
    stress_step(recipe, policy, TransformersSampler(policy), prompts, micro)
    planned = memory_of(
        recipe, shape, Engines("transformers", "transformers", False), prompt_tokens=PROMPT,
        completion_tokens=completion, gpu=80 * GIB, limit=micro.limit,
    )  # fmt: skip
    assert torch.cuda.max_memory_allocated() == pytest.approx(planned.peak - CONTEXT, rel=0.15)
