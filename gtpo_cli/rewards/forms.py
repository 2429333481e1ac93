"""The forms of a user's reward function, told apart by its parameters.

    one   (problem, completion) -> float              a completion at a time, whatever the two are called
    all   (problems, completions) -> list[float]      all completions of a step; the first one is called `problems`
    trl   (prompts, completions, **columns) -> list of floats or None      as TRL's GRPOTrainer calls it, by keyword

TRL's form has a parameter `prompts`, `completions` or `completion_ids`, or it has `**kwargs` and cannot be called with
two arguments. Every other parameter is a column of the data. It gets only the columns it names, or all with `**kwargs`.
If the model has a chat template, a prompt is a list of messages and a completion a list with the assistant's message;
otherwise both are texts.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any, Literal

from gtpo_cli.text import nearest_of
from gtpo_cli.types import Completion, Problem, Turn

Form = Literal["one", "all", "trl"]

_GIVEN = ("prompts", "completions", "completion_ids")
_SINGULAR = ("prompt", "completion")  # columns that TRL leaves out
_OF_TRAINER = ("trainer_state", "log_extra", "log_metric", "environments")
_EXPECTED = (
    "write it as (problem, completion), as (problems, completions), or as TRL has it, (prompts, completions, "
    "**columns): docs/rewards.md"
)


def form_of(function: Callable[..., Any]) -> Form:
    """Return a function's form. Raises ValueError with the expected ones if it can be called in none of them."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a built-in function
        return "one"
    parameters = signature.parameters
    first = next(iter(parameters), None)
    takes_two = _can_be_called(signature, None, None)
    if first != "problems" and (not takes_two or not parameters.keys().isdisjoint(_GIVEN)):
        _check_trl(signature)
        return "trl"
    if not takes_two:
        raise ValueError(f"its parameters are {signature}; {_EXPECTED}")
    return "all" if first == "problems" else "one"


def _check_trl(signature: inspect.Signature) -> None:
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    names = dict.fromkeys(_needed(signature.parameters))
    if Parameter.VAR_KEYWORD not in kinds and signature.parameters.keys().isdisjoint(_GIVEN):
        raise ValueError(f"its parameters are {signature}; {_EXPECTED}")
    if wrong := [name for name in _SINGULAR if name in names]:
        raise ValueError(f"it asks for {' and '.join(wrong)}, and TRL gives prompts and completions; {_EXPECTED}")
    if absent := [name for name in _OF_TRAINER if name in names]:
        raise ValueError(f"it asks for {' and '.join(absent)}, which only TRL's trainer has; give it a default, =None")
    if not _can_be_called(signature, **names):
        raise ValueError(f"its parameters are {signature}, which cannot all be given by keyword; {_EXPECTED}")


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call gives a coroutine, also for `functools.partial` and objects with an async `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def missing_columns(function: Callable[..., Any], problems: Iterable[Problem]) -> str | None:
    """Describe the columns that a function in TRL's form needs but none of these problems has; None without any."""
    columns = dict.fromkeys(name for problem in problems for name in _columns(problem))
    there = ", ".join(name for name in columns if name != "gold")
    asked = [name for name in _needed(inspect.signature(function).parameters) if name not in _GIVEN]
    missing = [name for name in asked if name not in columns]
    if not missing:
        return None
    near = nearest_of(missing[0], columns, cutoff=0.6)
    hint = f"; did you mean {near}?" if near else "; rename the parameter, or give it a default"
    plural = "s" if len(missing) > 1 else ""
    return (
        f"asks for the column{plural} {' and '.join(missing)}, which the data do not have: there is {there}, and gold "
        f"for the gold answer{hint}"
    )


def trl_arguments(
    function: Callable[..., Any], problems: Sequence[Problem], completions: Sequence[Completion]
) -> dict[str, Any]:
    """Return TRL's arguments: one entry for each completion, None if its row lacks a column that others have."""
    rows = [_columns(problem) for problem in problems]
    names = dict.fromkeys(name for row in rows for name in row)
    prompts = [problem.prompt or problem.turns or (("user", problem.question),) for problem in problems]
    parameters = inspect.signature(function).parameters
    given: dict[str, Any] = {name: [row.get(name) for row in rows] for name in (*_needed(parameters), *names)}
    given["prompts"] = [_messages(prompt) for prompt in prompts]
    given["completions"] = [
        completion.text if isinstance(prompt, str) else _messages((("assistant", completion.text),))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    given["completion_ids"] = [list(completion.token_ids) for completion in completions]
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return given
    return {name: values for name, values in given.items() if name in parameters}


def trl_score(score: Any) -> Any:
    """Convert a score as TRL's tensor does: a truth value to 1 or 0, a tensor to its one value, None to 0."""
    if score is None:
        return 0.0
    item = getattr(score, "item", None)  # torch, numpy
    value = item() if callable(item) else score
    return float(value) if isinstance(value, bool) else value


def _needed(parameters: Mapping[str, Parameter]) -> list[str]:
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [
        name
        for name, parameter in parameters.items()
        if parameter.default is Parameter.empty and parameter.kind not in variable
    ]


def _can_be_called(signature: inspect.Signature, *arguments: object, **named: object) -> bool:
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        return False
    return True


def _columns(problem: Problem) -> Mapping[str, Any]:
    """Return the row's columns, or usual ones for a problem without a row; `gold` is added unless it is a column."""
    made = {"question": problem.question, "answer": problem.gold, "solution": problem.solution}
    columns = dict(problem.columns or made)
    columns.setdefault("gold", problem.gold)
    return {name: value for name, value in columns.items() if name not in (*_GIVEN, *_SINGULAR)}


def _messages(prompt: str | Sequence[Turn]) -> str | list[dict[str, str]]:
    return prompt if isinstance(prompt, str) else [{"role": role, "content": text} for role, text in prompt]
