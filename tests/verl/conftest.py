"""A step of gtpo's own loop, and verl's configuration of a small recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_steps import own_step, step_recipe
from verl_batches import composed

from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.recipe import Recipe, dump_recipe, load_recipe
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
    """verl's configuration of a small recipe: the example's, with what this recipe requires."""
    from gtpo_cli.integrations.verl import required

    def make(*overrides: str) -> Any:
        recipe = load_recipe("tiny_arithmetic", ["objective.initial_entropy=0.5", "data.limit=20", *overrides])
        path = tmp_path / "recipe.yaml"
        path.write_text(dump_recipe(recipe), encoding="utf-8")
        settings = {
            "actor_rollout_ref.model.path": resolve_name(recipe.model.name),
            "actor_rollout_ref.model.lora_rank": 0,
        }
        settings |= {"data.train_batch_size": 8, **required(recipe)}
        return composed(path, *(f"{key}={'null' if value is None else value}" for key, value in settings.items()))

    return make
