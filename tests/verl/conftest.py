"""A step of gtpo's own loop, and verl's configuration of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_steps import own_step, step_recipe
from verl_batches import composed
from verl_command import prepare

from gtpo_cli.recipe import Recipe
from gtpo_cli.training.step import StepResult


@pytest.fixture(scope="session")
def steps() -> Any:
    """(recipe, result) of a step of gtpo's own loop, by overrides; each made once."""
    made: dict[tuple[str, ...], tuple[Recipe, StepResult]] = {}

    def step(*overrides: str) -> tuple[Recipe, StepResult]:
        if overrides not in made:
            recipe = step_recipe(overrides)
            made[overrides] = recipe, own_step(recipe)
        return made[overrides]

    return step


@pytest.fixture
def configuration(tmp_path: Path) -> Any:
    """verl's configuration of a small recipe."""

    def make(*overrides: str) -> Any:
        settings = ["objective.initial_entropy=0.5", "data.limit=20", *overrides]
        return composed(prepare("tiny_arithmetic", settings, gpus=1, out=tmp_path / "run"))

    return make
