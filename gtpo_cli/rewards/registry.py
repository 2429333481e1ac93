"""User rewards: loading one by its name, one call, and what may come out of it.

A plug-in is the user's own code and runs in the training process, without a time limit. How its calls are made for
many completions: user_reward.py.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from gtpo_cli.errors import RewardError
from gtpo_cli.rewards.forms import form_of, missing_columns
from gtpo_cli.text import shown
from gtpo_cli.types import Completion, Problem
from gtpo_cli.user_code import import_function, running

Plugin = Callable[[Problem, Completion], float]

_SHOWN_CHARACTERS = 200
MAX_SCORE = 1e100  # beyond it, sums and squares of scores are infinite


def load_plugin(dotted: str) -> Plugin:
    """Import `pkg.module:function`, a CodeName. Raises RewardError that names what is missing, or what its parameters
    should be."""
    plugin: Plugin = import_function(dotted, lambda why: RewardError(f"reward {dotted}: {why}"))
    try:
        form_of(plugin)
    except ValueError as error:
        raise RewardError(f"reward {dotted}: {error}") from error
    return plugin


def check_columns(name: str, plugin: Callable[..., Any], problems: Iterable[Problem]) -> None:
    """Raise RewardError where a reward in TRL's form asks for a column that none of the problems has."""
    if form_of(plugin) == "trl" and (why := missing_columns(plugin, problems)) is not None:
        raise RewardError(f"reward {name}: {why}")


def call_plugin(name: str, plugin: Plugin, problem: Problem, completion: Completion) -> float:
    """The plug-in's score of one completion. Raises RewardError when it raises, or returns no finite real number."""
    with told_of(name, problem, completion):
        score: object = plugin(problem, completion)
    return checked_score(name, score, problem, completion)


def told_of(name: str, problem: Problem, completion: Completion) -> AbstractContextManager[None]:
    """What the plug-in's code raises in here is a RewardError that names it and what it was asked about."""
    return running(lambda said: RewardError(f"reward {name} raised {said}; {_where(problem, completion)}"))


def checked_score(name: str, score: object, problem: Problem, completion: Completion) -> float:
    """What a plug-in returned, as a float. Raises RewardError where it is no finite real number."""
    with told_of(name, problem, completion):
        value, wrong = _checked(score)
    if wrong is not None:
        given = shown(score, most=_SHOWN_CHARACTERS)
        raise RewardError(f"reward {name} returned {given}, which {wrong}; {_where(problem, completion)}")
    return value


def _where(problem: Problem, completion: Completion) -> str:
    return f"on problem {problem.id}, completion {completion.text[:_SHOWN_CHARACTERS]!r}"


def _checked(score: object) -> tuple[float, str | None]:
    """The score as a float, and what is wrong with it."""
    if isinstance(score, bool) or not isinstance(score, numbers.Real):
        return 0.0, f"is a {type(score).__name__}, not a float"
    try:
        value = float(score)
    except OverflowError:  # a whole number or a fraction beyond 1e308
        value = math.inf
    if not math.isfinite(value):
        return 0.0, "is not finite"
    return value, None if abs(value) <= MAX_SCORE else "no sum could hold"
