"""Groups -> scored groups."""

from __future__ import annotations

from collections.abc import Sequence

from gtpo_cli.recipe.schema import RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.types import Group


def open_scorer(recipe: RewardsRecipe) -> Scorer:
    """The scorer a recipe asks for; a context manager. Raises RewardError for a plug-in that cannot be loaded."""
    return Scorer(recipe)


def score(groups: Sequence[Group], scorer: Scorer) -> list[Group]:
    """The same groups with a verdict for every completion. Raises RewardError."""
    return scorer.score_groups(groups)
