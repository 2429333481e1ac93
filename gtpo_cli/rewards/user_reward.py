"""A user's reward, called according to its form.

    def score(problem, completion) -> float             one completion after the other
    async def score(problem, completion) -> float       32 completions at once
    def score(problems, completions) -> list[float]     all completions of a step in one call; may be async too
    def score(prompts, completions, **columns)          the same, in TRL's form (forms.py)

An async reward starts when a completion ends, while others are still being sampled. It runs in an event loop in a
thread of its own, which does not keep the program from ending if the user's code never returns.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from gtpo_cli.errors import RewardError
from gtpo_cli.rewards.forms import form_of, is_async, trl_arguments, trl_score
from gtpo_cli.rewards.registry import call_plugin, check_columns, checked_score, load_plugin, naming_completion
from gtpo_cli.text import counted, shown
from gtpo_cli.types import Completion, Problem

if TYPE_CHECKING:
    from anyio import CapacityLimiter
    from anyio.from_thread import BlockingPortal

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
                check_columns(self.name, self._function, problems)
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
