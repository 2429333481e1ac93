"""User rewards by dotted path, `pkg.module:function`: loading, one call, and what may come out of it.

A plug-in is the user's own code and runs in the training process, without a time limit. How its calls are made for
many completions: user_reward.py.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import numbers
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from gtpo_cli.errors import Ended, GtpoError, RewardError
from gtpo_cli.recipe.section import CodeName
from gtpo_cli.text import describe, one_line
from gtpo_cli.types import Completion, Problem

Plugin = Callable[[Problem, Completion], float]

_SHOWN_CHARACTERS = 200
MAX_SCORE = 1e100  # beyond it, sums and squares of scores are infinite


def load_plugin(dotted: str) -> Plugin:
    """Import `pkg.module:function`, a CodeName. Raises RewardError that names what is missing."""
    plugin: Plugin = import_function(dotted, lambda why: RewardError(f"reward {dotted}: {why}"))
    return plugin


def import_function(dotted: str, wrong: Callable[[str], GtpoError]) -> Callable[..., Any]:
    """Import `pkg.module:function` or `file.py:function`, a CodeName. Raises `wrong(what is missing)`.

    It may lie in the working folder. Modules next to it there can be imported later too, when the function runs.
    """
    assert isinstance(dotted, CodeName), "what a recipe names is checked by that type: RunFolder.recipe_to_run"
    module_name, _, function_name = dotted.rpartition(":")
    if not module_name or not function_name:
        raise wrong("write it as pkg.module:function")
    try:
        module = _imported(module_name)
    except (KeyboardInterrupt, Ended):
        raise
    except BaseException as error:  # a module's own code may raise anything, sys.exit included
        raise wrong(
            f"module {module_name} cannot be imported ({describe(error)}); install it, or put its folder on PYTHONPATH"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise wrong(f"module {module_name} has no function {function_name}")
    found: Callable[..., Any] = function
    return found


def _imported(name: str) -> ModuleType:
    """The working folder is looked into last, and only for this: a run's folder, where a user may stand, must not give
    a library its modules. It stays on the path where the module came from there, and so its neighbours may be used."""
    with _working_folder_last() as here:
        module = _of_file(name) if name.endswith(".py") else importlib.import_module(name)
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    if here not in sys.path and any(Path(place).is_relative_to(here) for place in places if place):
        sys.path.append(here)
    return module


@contextlib.contextmanager
def _working_folder_last() -> Iterator[str]:
    here = str(Path.cwd())
    if here in sys.path:
        yield here
        return
    sys.path.append(here)
    try:
        yield here
    finally:  # what the module itself put on the path stays there
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def _of_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(path).expanduser())
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    taken = spec.name in sys.modules  # by an installed one of that name
    if not taken:
        sys.modules[spec.name] = module  # dataclasses look themselves up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if not taken:
            del sys.modules[spec.name]
        raise
    return module


def missing_module(dotted: str) -> str | None:
    """The package, module or file of `pkg.module:function` that is not there, looked for without running any of it."""
    named = dotted.rpartition(":")[0]
    if named.endswith(".py"):
        return None if Path(named).expanduser().is_file() else named
    top = named.partition(".")[0]
    try:
        with _working_folder_last():
            return None if not top or importlib.util.find_spec(top) is not None else top
    except (ValueError, ImportError):  # no name of a module, or one without a file
        return top


def call_plugin(name: str, plugin: Plugin, problem: Problem, completion: Completion) -> float:
    """The plug-in's score of one completion. Raises RewardError when it raises, or returns no finite real number."""
    with told_of(name, problem, completion):
        score: object = plugin(problem, completion)
    return checked_score(name, score, problem, completion)


@contextlib.contextmanager
def told_of(name: str, problem: Problem, completion: Completion) -> Iterator[None]:
    """What the plug-in's code raises in here is a RewardError that names it and what it was asked about."""
    try:
        yield
    except (KeyboardInterrupt, Ended):
        raise
    except BaseException as error:  # the user's code may raise anything, sys.exit included
        raise RewardError(f"reward {name} raised {describe(error)}; {_where(problem, completion)}") from error


def checked_score(name: str, score: object, problem: Problem, completion: Completion) -> float:
    """What a plug-in returned, as a float. Raises RewardError where it is no finite real number."""
    with told_of(name, problem, completion):
        value, wrong = _checked(score)
    if wrong is not None:
        raise RewardError(f"reward {name} returned {_shown(score)}, which {wrong}; {_where(problem, completion)}")
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


def _shown(score: object) -> str:
    try:
        return one_line(repr(score), most=_SHOWN_CHARACTERS)
    except Exception:  # noqa: BLE001 - of an object of the user's, or a number of too many digits
        return f"a {type(score).__name__}"
