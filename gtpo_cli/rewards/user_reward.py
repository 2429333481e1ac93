"""A user's reward: loading it by name, calling it according to its form, and checking its scores.

A plug-in is the user's own code. It runs in the training process without a time limit.

    def score(problem, completion) -> float             one completion after the other
    async def score(problem, completion) -> float       32 completions at once
    def score(problems, completions) -> list[float]     all completions of a step in one call; may be async too
    def score(prompts, completions, **columns)          the same, as TRL's GRPOTrainer calls it, by keyword

Its parameters tell the forms apart. TRL's form has a parameter `prompts`, `completions` or `completion_ids`, or it has
`**kwargs` and cannot be called with two arguments. Every other parameter is a column of the data, which no other form
gets. It gets only the columns it names, or all with `**kwargs`. If the model has a chat template, a prompt is a list of
messages and a completion a list with the assistant's message; otherwise both are texts.

An async reward starts when a completion ends, while others are still being sampled. It runs in an event loop in a
thread of its own, which does not keep the program from ending if the user's code never returns.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import numbers
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import cached_property, partial
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Literal

from gtpo_cli.errors import RewardError
from gtpo_cli.runs.user_code import import_function, running
from gtpo_cli.text import counted, nearest_of, shown
from gtpo_cli.types import Completion, Problem, Turn

if TYPE_CHECKING:
    from anyio import CapacityLimiter
    from anyio.from_thread import BlockingPortal


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


def check_plugin_columns(name: str, plugin: Callable[..., Any], problems: Iterable[Problem]) -> None:
    """Raise RewardError if a reward in TRL's form needs a column that none of the problems has, or if one in another
    form has a parameter with the name of a column, which it would not get."""
    if form_of(plugin) == "trl":
        if (why := missing_columns(plugin, problems)) is not None:
            raise RewardError(f"reward {name}: {why}")
        return
    columns = {column for problem in problems for column in _columns(problem)}
    with contextlib.suppress(TypeError, ValueError):  # of a built-in function
        names = _needed(inspect.signature(plugin).parameters)
        for parameter in names:
            if parameter in columns and names[0] not in ("problem", "problems"):
                raise RewardError(
                    f"reward {name}: its parameter {parameter} has the name of a column, but it would get a problem or "
                    f"a completion; {_EXPECTED}"
                )


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


ASYNC_CALLS = 32  # parallel calls of an async function
CLOSE_SECONDS = 5.0

Completions = Sequence[tuple[Problem, Completion]]


class UserReward:
    """`pkg.module:function`. Raises RewardError if it is missing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._function: Callable[..., Any] = load_plugin(name)
        self._is_async = is_async(self._function)
        self._form = form_of(self._function)
        self._takes_all = self._form != "one"
        self._runs_beside = self._is_async and not self._takes_all
        self._under_way: dict[tuple[Problem, Completion], list[Future[float]]] = defaultdict(list)
        self._resources = contextlib.ExitStack()

    def begin(self, problem: Problem, completion: Completion) -> None:
        """Start scoring a completion in advance, if the reward can run in parallel."""
        if self._runs_beside:
            self._under_way[problem, completion].append(self._start(problem, completion))

    def ask(self, pairs: Completions) -> Callable[[], list[float]]:
        """Start all pending calls, and return a function that waits for the scores in order.

        That raises RewardError unless the user's function returns one finite number for each completion.
        """
        if self._takes_all:
            return partial(self._scores_of_all, pairs)
        if not self._runs_beside:
            return lambda: [call_plugin(self.name, self._function, *pair) for pair in pairs]
        futures = [self._begun(pair) or self._start(*pair) for pair in pairs]
        return lambda: [future.result() for future in futures]

    def close(self) -> None:
        """Cancel running calls, and abandon those that do not end within CLOSE_SECONDS."""
        closing = threading.Thread(target=self._resources.close, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

    def _begun(self, pair: tuple[Problem, Completion]) -> Future[float] | None:
        futures = self._under_way.pop(pair, [])
        if futures[1:]:  # the same completion was sampled again and needs its own call
            self._under_way[pair] = futures[1:]
        return futures[0] if futures else None

    def _start(self, problem: Problem, completion: Completion) -> Future[float]:
        return self._portal.start_task_soon(self._ask_one, problem, completion)

    async def _ask_one(self, problem: Problem, completion: Completion) -> float:
        async with self._limiter:
            with naming_completion(self.name, problem, completion):
                score = await self._function(problem, completion)
        return checked_score(self.name, score, problem, completion)

    def _scores_of_all(self, pairs: Completions) -> list[float]:
        if not pairs:
            return []
        problems, completions = map(list, zip(*pairs, strict=True))
        if self._form == "trl":
            if not any(problem.columns for problem in problems):  # no rows of data, which were checked as a whole
                check_plugin_columns(self.name, self._function, problems)
            call = partial(self._function, **trl_arguments(self._function, problems, completions))
        else:
            call = partial(self._function, problems, completions)
        with naming_completion(self.name, *pairs[0]):
            given = self._portal.call(call) if self._is_async else call()
            scores = list(given) if isinstance(given, Iterable) else None
            if scores is not None and self._form == "trl":
                scores = [trl_score(score) for score in scores]
        if scores is None:  # for example if `return` was forgotten
            wanted = f"a list with {counted(len(pairs), 'score')}, one for each completion"
            raise RewardError(f"reward {self.name} returned {shown(given, most=200)}, not {wanted}")
        if len(scores) != len(pairs):
            found = f"{counted(len(scores), 'score')} for {counted(len(pairs), 'completion')}"
            raise RewardError(f"reward {self.name} returned {found}")
        return [checked_score(self.name, score, *pair) for score, pair in zip(scores, pairs, strict=True)]

    @cached_property
    def _portal(self) -> BlockingPortal:
        """The portal to an event loop in its own thread."""
        from anyio.from_thread import start_blocking_portal

        portal = self._resources.enter_context(start_blocking_portal())
        self._resources.callback(portal.call, portal.stop, True)  # cancels what is left
        return portal

    @cached_property
    def _limiter(self) -> CapacityLimiter:
        from anyio import CapacityLimiter

        return CapacityLimiter(ASYNC_CALLS)
