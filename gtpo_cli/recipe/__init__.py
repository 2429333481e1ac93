"""Recipes: the typed, immutable description of a run. Imports no torch."""

from gtpo_cli.recipe.load import (
    build_recipe,
    describe_problems,
    dump_recipe,
    find_recipe,
    find_sweep,
    load_recipe,
    overridden_keys,
    read_mapping,
    shipped_recipes,
    shipped_sweeps,
)
from gtpo_cli.recipe.schema import Recipe

__all__ = [
    "Recipe",
    "build_recipe",
    "describe_problems",
    "dump_recipe",
    "find_recipe",
    "find_sweep",
    "load_recipe",
    "overridden_keys",
    "read_mapping",
    "shipped_recipes",
    "shipped_sweeps",
]
