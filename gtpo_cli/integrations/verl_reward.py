"""gtpo's rewards as a reward function of verl: `reward.custom_reward_function`, in each of verl's reward workers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from gtpo_cli.errors import RewardError
from gtpo_cli.recipe import load_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.types import Completion, Problem

_one_at_a_time = threading.Lock()  # verl calls from a pool of threads


@dataclass(frozen=True, slots=True)
class TextOnly:
    """All that verl hands a reward function of a completion. A plug-in that asks for more gets an error by name."""

    text: str

    def __getattr__(self, name: str) -> Any:
        raise RewardError(f"completion.{name} is not known to a reward under verl, which hands over the text only")


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    recipe: str,
    **_: Any,
) -> dict[str, float]:
    """The reward of one completion, by the rewards of a recipe (format, accuracy, plug-ins, their weights).

    Args:
        data_source, ground_truth, extra_info: of a row of `verl.Problems`.
        solution_str: the decoded response without special tokens.
        recipe: path of the recipe; `reward.custom_reward_function.reward_kwargs.recipe`.
    Returns:
        `score` is the weighted sum, verl's reward. The others are logged: `acc`, `format`, `strict_format` and
        `timed_out` (the comparison ran out of time or memory) are 1 or 0, plug-ins are unweighted, by name.
    Raises:
        RewardError: a plug-in cannot be loaded, fails, or asks for more than the text. RecipeError.
    """
    row = extra_info or {}
    problem = Problem(
        id=str(row.get("id", data_source)),
        question=str(row.get("question", "")),
        gold=ground_truth,
        solution=row.get("solution") or None,
        source=str(row.get("source", data_source)),
    )
    with _one_at_a_time:
        (verdict,) = _scorer(recipe).score(problem, [cast(Completion, TextOnly(solution_str))])
    return {
        "score": verdict.reward,
        "acc": float(verdict.accuracy_score > 0),
        "format": float(verdict.complete_format),
        "strict_format": float(verdict.strict_format),
        "timed_out": float(verdict.timed_out),
        **verdict.plugins,
    }


@cache
def _scorer(recipe: str) -> Scorer:
    """One for the life of the process, with one grading process: verl itself starts `reward.num_workers` of these."""
    return Scorer(load_recipe(recipe).rewards, num_workers=1)
