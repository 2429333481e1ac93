"""A reward of the user's, asked in the way in which it is written.

    def score(problem, completion) -> float             one completion after the other; with `concurrency`, in threads
    async def score(problem, completion) -> float       `concurrency` completions at once
    def score(problems, completions) -> list[float]     all completions of a step in one call; may be async too
    def score(prompts, completions, **columns)          the same, in TRL's form (forms.py)

What can run beside other work begins when a completion has ended, while others are still being sampled. It runs in an
event loop of its own, and threads of that, which do not keep the program from ending: code of the user's may never come
back.
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
from gtpo_cli.rewards.registry import call_plugin, check_columns, checked_score, load_plugin, told_of
from gtpo_cli.text import counted, shown
from gtpo_cli.types import Completion, Problem

if TYPE_CHECKING:
    from anyio import CapacityLimiter
    from anyio.from_thread import BlockingPortal

ASYNC_CALLS = 32  # of an async function at once, where the recipe does not say
CLOSE_SECONDS = 5.0

Completions = Sequence[tuple[Problem, Completion]]


class UserReward:
    """`pkg.module:function`, with at most `concurrency` calls at one time. Raises RewardError where it is not there."""

    def __init__(self, name: str, *, concurrency: int | None = None) -> None:
        self.name = name
        self._function: Callable[..., Any] = load_plugin(name)
        self._is_async = is_async(self._function)
        self._form = form_of(self._function)
        self._takes_all = self._form != "one"
        self._at_once = concurrency or (ASYNC_CALLS if self._is_async else 1)
        self._under_way: dict[tuple[Problem, Completion], list[Future[float]]] = defaultdict(list)
        self._resources = contextlib.ExitStack()

    def begin(self, problem: Problem, completion: Completion) -> None:
        """Ask about a completion that will be scored soon, where that runs beside other work."""
        if self._runs_beside:
            self._under_way[problem, completion].append(self._start(problem, completion))

    def ask(self, asked: Completions) -> Callable[[], list[float]]:
        """Begin with all that has not begun. What is returned waits for the scores, in order.

        It raises RewardError where the function raises, or gives anything but finite numbers, one for each.
        """
        if self._takes_all:
            return partial(self._scores_of_all, asked)
        if not self._runs_beside:
            return lambda: [call_plugin(self.name, self._function, *pair) for pair in asked]
        futures = [self._begun(pair) or self._start(*pair) for pair in asked]
        return lambda: [future.result() for future in futures]

    def close(self) -> None:
        """What is under way is given up; what then does not end within CLOSE_SECONDS is left to itself."""
        closing = threading.Thread(target=self._resources.close, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

    @property
    def _runs_beside(self) -> bool:
        return not self._takes_all and (self._is_async or self._at_once > 1)

    def _begun(self, pair: tuple[Problem, Completion]) -> Future[float] | None:
        futures = self._under_way.pop(pair, [])
        if futures[1:]:  # the same completion was sampled again, and is asked about again
            self._under_way[pair] = futures[1:]
        return futures[0] if futures else None

    def _start(self, problem: Problem, completion: Completion) -> Future[float]:
        return self._portal.start_task_soon(self._ask_one, problem, completion)

    async def _ask_one(self, problem: Problem, completion: Completion) -> float:
        if not self._is_async:
            from anyio import to_thread

            call = partial(call_plugin, self.name, self._function, problem, completion)
            return await to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)
        async with self._limiter:
            with told_of(self.name, problem, completion):
                score = await self._function(problem, completion)
        return checked_score(self.name, score, problem, completion)

    def _scores_of_all(self, asked: Completions) -> list[float]:
        if not asked:
            return []
        problems, completions = map(list, zip(*asked, strict=True))
        if self._form == "trl":
            if not any(problem.columns for problem in problems):  # no rows of data, which were checked as a whole
                check_columns(self.name, self._function, problems)
            call = partial(self._function, **trl_arguments(self._function, problems, completions))
        else:
            call = partial(self._function, problems, completions)
        with told_of(self.name, *asked[0]):
            given = self._portal.call(call) if self._is_async else call()
            scores = list(given) if isinstance(given, Iterable) else None
            if scores is not None and self._form == "trl":
                scores = [trl_score(score) for score in scores]
        if scores is None:  # as where `return` was forgotten
            wanted = f"a list with {counted(len(asked), 'score')}, one for each completion"
            raise RewardError(f"reward {self.name} returned {shown(given, most=200)}, not {wanted}")
        if len(scores) != len(asked):
            found = f"{counted(len(scores), 'score')} for {counted(len(asked), 'completion')}"
            raise RewardError(f"reward {self.name} returned {found}")
        return [checked_score(self.name, score, *pair) for score, pair in zip(scores, asked, strict=True)]

    @cached_property
    def _portal(self) -> BlockingPortal:
        """Into an event loop in a thread of its own."""
        from anyio.from_thread import start_blocking_portal

        portal = self._resources.enter_context(start_blocking_portal())
        self._resources.callback(portal.call, portal.stop, True)  # cancels what is left
        return portal

    @cached_property
    def _limiter(self) -> CapacityLimiter:
        from anyio import CapacityLimiter

        return CapacityLimiter(self._at_once)
