"""TRL's own reward functions, named in a recipe as they are."""

from __future__ import annotations

import pytest

from gtpo_cli.errors import RewardError
from gtpo_cli.recipe.rewards import RewardsRecipe
from gtpo_cli.rewards import Scorer, check_rewards
from gtpo_cli.types import Completion, Group, Problem

PROBLEM = Problem("p", "1+1?", "2", columns={"question": "1+1?", "solution": r"\boxed{2}"}, prompt=(("user", "1+1?"),))


def rewards(name: str, *texts: str) -> list[float]:
    completions = tuple(Completion((5,), (0.0,), "stop", text) for text in texts)
    recipe = RewardsRecipe.model_validate({"plugins": [{"name": name}]})
    with Scorer(recipe, num_workers=1) as scorer:
        return [verdict.plugins[name] for verdict in scorer.score_groups([Group(PROBLEM, (), completions)])[0].verdicts]


def test_a_format_reward() -> None:
    assert rewards("trl.rewards:think_format_reward", "<think>1 + 1</think>2", "2") == [1.0, 0.0]


def test_an_accuracy_reward_that_asks_for_a_column() -> None:
    name = "trl.rewards:accuracy_reward"
    assert rewards(name, r"so \boxed{2}", r"so \boxed{3}") == [1.0, 0.0]
    recipe = RewardsRecipe.model_validate({"plugins": [{"name": name}]})
    check_rewards(recipe, [PROBLEM])
    with pytest.raises(RewardError, match=r"asks for the column solution, .*: there is question, and gold for"):
        check_rewards(recipe, [Problem("p", "1+1?", "2", columns={"question": "1+1?"})])
