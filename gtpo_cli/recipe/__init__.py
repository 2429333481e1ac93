"""Recipes: the typed, immutable description of a run. Imports no torch."""

from gtpo_cli.recipe.load import build_recipe, dump_recipe, find_recipe, load_recipe, read_mapping, shipped_recipes
from gtpo_cli.recipe.schema import Recipe

__all__ = ["Recipe", "build_recipe", "dump_recipe", "find_recipe", "load_recipe", "read_mapping", "shipped_recipes"]
