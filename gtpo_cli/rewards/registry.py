"""User rewards by dotted path: `pkg.module:function`, called as `function(problem, completion) -> float`.

A plug-in is the user's own code and runs in the training process, without a time limit.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import numbers
from collections.abc import Callable

from gtpo_cli.errors import RewardError
from gtpo_cli.types import Completion, Problem

Plugin = Callable[[Problem, Completion], float]

_SHOWN_CHARACTERS = 200


def load_plugin(dotted: str) -> Plugin:
    """Import `pkg.module:function`. Raises RewardError that names what is missing."""
    module_name, _, function_name = dotted.partition(":")
    if not module_name or not function_name:
        raise RewardError(f"reward {dotted}: write it as pkg.module:function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module's own code may raise anything
        raise RewardError(
            f"reward {dotted}: module {module_name} cannot be imported ({type(error).__name__}: {error}); "
            "install it, or put its folder on PYTHONPATH"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise RewardError(f"reward {dotted}: module {module_name} has no function {function_name}")
    plugin: Plugin = function
    return plugin


def missing_module(dotted: str) -> str | None:
    """The package or module of `pkg.module:function` that is not there, looked for without running any of its code."""
    top = dotted.partition(":")[0].partition(".")[0]
    return None if not top or importlib.util.find_spec(top) is not None else top


def call_plugin(name: str, plugin: Plugin, problem: Problem, completion: Completion) -> float:
    """The plug-in's score of one completion. Raises RewardError when it raises, or returns no finite real number."""
    where = f"on problem {problem.id}, completion {completion.text[:_SHOWN_CHARACTERS]!r}"
    try:
        score: object = plugin(problem, completion)
    except Exception as error:  # the user's code may raise anything
        raise RewardError(f"reward {name} raised {type(error).__name__}: {error}; {where}") from error
    if isinstance(score, bool) or not isinstance(score, numbers.Real):
        raise RewardError(f"reward {name} returned {score!r}, which is a {type(score).__name__}, not a float; {where}")
    if not math.isfinite(score):
        raise RewardError(f"reward {name} returned {score!r}, which is not finite; {where}")
    return float(score)
