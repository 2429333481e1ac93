"""Tasks make problems and say how right an answer is: built in, of reasoning-gym, or a class of the user's own.

A task is found by its name in `data.benchmark`: `arithmetic`, `reasoning_gym/chain_sum`, `my_task.py:Task`. Tables of
problems (`gtpo_cli.data`) need none: their answers are compared with the gold answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import GYM
from gtpo_cli.types import CodeName

Row = Mapping[str, Any]

SPLITS = ("train", "test")


class Task(Protocol):
    """What a class of the user's own has: `Task(**data.config)`, then these.

    Three more are optional. `score(row, answer) -> float` is a number from 0 to 1, of which only 1 is right; `row` is
    the problem's, `answer` the text that the completion gives as its answer. Without it, answers are compared with the
    row's (`rewards.accuracy.equality`). `counts` has how many problems of each split are used without `data.limit`.
    `levels`, an attribute of the class, is how many levels of difficulty it has for `data.curriculum`; it is then made
    as `Task(level=0, **data.config)`, with levels from 0.
    """

    def problems(self, split: str, seed: int) -> Iterable[Row]:
        """Yield rows with `question` and `answer` (None if only `score` knows), perhaps `solution`, as many as there
        are or endlessly. `split` is "train" or "test"; the test must not depend on the seed."""


@runtime_checkable
class Scores(Protocol):
    """A task that scores answers itself."""

    def score(self, row: Row, answer: str) -> float: ...


COUNTS = {"train": 2000, "test": 500}  # without data.limit, of a task without `counts`
OF_LEVEL = 200  # of each level


def find_task(name: str, config: Mapping[str, Any], level: int | None = None) -> Task:
    """Return a task, at a level if one is named. Raises DataError if there is none, or if it does not take the
    configuration."""
    if ":" in name:
        return _own_task(CodeName(name), config if level is None else {"level": level, **config})
    if name.startswith(GYM):
        from gtpo_cli.tasks.gym import GymTask

        return GymTask(name.removeprefix(GYM), config, level)
    if config:
        raise DataError(f"data.config: {name} has no configuration; remove the key")
    if name == "arithmetic":
        from gtpo_cli.tasks.arithmetic import Arithmetic

        return Arithmetic()
    from gtpo_cli.tasks.word_problems import WordProblems

    return WordProblems()


def level_count(name: str) -> int:
    """Return how many levels a task has. Raises DataError if it has none."""
    count: int = 0
    if name.startswith(GYM):
        from gtpo_cli.tasks.gym import levels

        count = max(map(len, levels(name.removeprefix(GYM)).values()), default=0)
    elif ":" in name:
        count = getattr(_own_class(CodeName(name)), "levels", 0)
    if not isinstance(count, int) or count < 1:
        raise DataError(f"data.curriculum: {name} has no levels; leave the key out, or choose tasks that have some")
    return count


def _own_class(name: CodeName) -> Any:
    from gtpo_cli.runs.user_code import import_function

    return import_function(name, partial(_wrong, name))


def _wrong(name: CodeName, said: str) -> DataError:
    return DataError(f"data.benchmark: {name}: {said}")


def _own_task(name: CodeName, config: Mapping[str, Any]) -> Task:
    from gtpo_cli.runs.user_code import running

    make = _own_class(name)
    with running(partial(_wrong, name)):
        task = make(**config)
    if not callable(getattr(task, "problems", None)):
        raise _wrong(name, "makes no task: it has no method problems(split, seed); docs/tasks.md has an example")
    found: Task = task
    return found
