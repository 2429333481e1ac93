"""User rewards: loading one by name, calling it once, and checking its score.

A plug-in is the user's own code. It runs in the training process without a time limit. user_reward.py makes the calls
for many completions.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from gtpo_cli.errors import RewardError
from gtpo_cli.rewards.forms import form_of, missing_columns
from gtpo_cli.runs.user_code import import_function, running
from gtpo_cli.text import shown
from gtpo_cli.types import Completion, Problem

Plugin = Callable[[Problem, Completion], float]

_SHOWN_CHARACTERS = 200
MAX_SCORE = 1e9  # with the largest weight, 1000, float64 still tells apart rewards that differ by 0.001


def load_plugin(dotted: str) -> Plugin:
    """Import `pkg.module:function`, a CodeName. Raises RewardError if it is missing or has unsuitable parameters."""
    plugin: Plugin = import_function(dotted, lambda why: RewardError(f"reward {dotted}: {why}"))
    try:
        form_of(plugin)
    except ValueError as error:
        raise RewardError(f"reward {dotted}: {error}") from error
    return plugin


def check_columns(name: str, plugin: Callable[..., Any], problems: Iterable[Problem]) -> None:
    """Raise RewardError if a reward in TRL's form needs a column that none of the problems has."""
    if form_of(plugin) == "trl" and (why := missing_columns(plugin, problems)) is not None:
        raise RewardError(f"reward {name}: {why}")


def call_plugin(name: str, plugin: Plugin, problem: Problem, completion: Completion) -> float:
    """Score one completion. Raises RewardError if the plug-in raises, or does not return a finite real number."""
    with naming_completion(name, problem, completion):
        score: object = plugin(problem, completion)
    return checked_score(name, score, problem, completion)


def naming_completion(name: str, problem: Problem, completion: Completion) -> AbstractContextManager[None]:
    """Turn exceptions of the plug-in's code into a RewardError that names it, the problem and the completion."""
    return running(lambda said: RewardError(f"reward {name} raised {said}; {_where(problem, completion)}"))


def checked_score(name: str, score: object, problem: Problem, completion: Completion) -> float:
    """Return a plug-in's score as a float. Raises RewardError unless it is a finite real number."""
    with naming_completion(name, problem, completion):
        value, wrong = _checked(score)
    if wrong is not None:
        given = shown(score, most=_SHOWN_CHARACTERS)
        raise RewardError(f"reward {name} returned {given}, which {wrong}; {_where(problem, completion)}")
    return value


def _where(problem: Problem, completion: Completion) -> str:
    return f"on problem {problem.id}, completion {completion.text[:_SHOWN_CHARACTERS]!r}"


def _checked(score: object) -> tuple[float, str | None]:
    """Return the score as a float and the problem with it, if any."""
    if isinstance(score, bool) or not isinstance(score, numbers.Real):
        return 0.0, f"is a {type(score).__name__}, not a float"
    try:
        value = float(score)
    except OverflowError:  # a whole number or a fraction beyond 1e308
        value = math.inf
    if not math.isfinite(value):
        return 0.0, "is not finite"
    return value, None if abs(value) <= MAX_SCORE else f"is beyond {MAX_SCORE:g} in size; scale it down"
