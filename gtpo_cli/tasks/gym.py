"""Tasks of reasoning-gym (https://github.com/open-thought/reasoning-gym), an optional dependency: `.[tasks]`.

Its data set number i of seed s draws from `random.Random(s + i)`. The test's seeds are above all of training's. Since
small tasks repeat their questions, a hash of its text also says to which split a question belongs. The test asks no
question twice: the interval of its scores takes the problems as independent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from typing import Any

from gtpo_cli.errors import DataError, install
from gtpo_cli.recipe.data import GYM
from gtpo_cli.seeds import derive_seed
from gtpo_cli.tasks.worked import worked_solution
from gtpo_cli.text import describe, did_you_mean

TEST_ONE_IN = 4  # different questions
MOST_OTHERS = 200  # questions in a row that are not for this split; after them there is none
_CHUNK = 500  # of a data set, some of which prepare all of their questions
_TEST_SEED = 2**31
_OURS = ("seed", "size")


class GymTask:
    """A task of the library. `config` has the keys of its configuration but seed and size. `level`: of all parts of the
    library's curriculum, which then decides their keys. Raises DataError."""

    def __init__(self, name: str, config: Mapping[str, Any], level: int | None = None) -> None:
        self.name = name
        self._factory = _library("reasoning_gym.factory")
        if name not in self._factory.DATASETS:
            hint = did_you_mean(name, self._factory.DATASETS, "gtpo tasks lists them")
            raise DataError(f"data.benchmark: {GYM}{name}: reasoning-gym has no such task; {hint}")
        self._config = dict(config)
        known = defaults(name)
        if unknown := [key for key in config if key not in known]:
            hint = did_you_mean(unknown[0], known, f"there are {', '.join(known)}")
            raise DataError(f"data.config.{unknown[0]}: {GYM}{name} has no such key; {hint}")
        if level is not None:
            self._config = self._at(level)
        self._scoring = self._data_set(0)

    def problems(self, split: str, seed: int) -> Iterator[Mapping[str, Any]]:
        start = _TEST_SEED if split == "test" else derive_seed(seed, "reasoning_gym") % 2**30
        others, asked = 0, set[str]()
        while True:
            data_set = self._data_set(start)
            for number in range(_CHUNK):
                row = data_set[number]
                question = row["question"]
                if _is_test(question) == (split == "test") and question not in asked:
                    others = 0
                    if split == "test":
                        asked.add(question)
                    yield row | {"solution": worked_solution(self.name, row)}
                elif (others := others + 1) == MOST_OTHERS:
                    return
            start += _CHUNK

    def score(self, row: Mapping[str, Any], answer: str) -> float:
        return float(self._scoring.score_answer(answer, row))

    def _at(self, level: int) -> dict[str, Any]:
        curriculum = self._factory.create_curriculum(self.name)
        curriculum.set_global_level(level)
        fields = ("field_name", "lower_field_name", "upper_field_name")
        moved = {getattr(part, field, None) for part in curriculum.attributes.values() for field in fields}
        if taken := [key for key in self._config if key in moved]:
            raise DataError(f"data.config.{taken[0]}: the levels of {GYM}{self.name} decide it; remove the key")
        whole = vars(curriculum.generate_configuration(self._config))
        return {key: value for key, value in whole.items() if key not in _OURS}

    def _data_set(self, seed: int) -> Any:
        try:
            return self._factory.create_dataset(self.name, seed=seed, size=_CHUNK, **self._config)
        except Exception as error:  # whatever a configuration's check raises
            raise DataError(f"data.config: {GYM}{self.name}: {describe(error)}") from error


def names() -> list[str]:
    """Return the names of the library's tasks. Raises DataError without it."""
    return sorted(_library("reasoning_gym.factory").DATASETS)


def about(name: str) -> str:
    """Return the first paragraph of the library's description of a task, empty without one."""
    own = vars(_library("reasoning_gym.factory").DATASETS[name][0]).get("__doc__") or ""
    return " ".join(inspect.cleandoc(own).split("\n\n")[0].split())


def defaults(name: str) -> dict[str, Any]:
    """Return the keys of a task's configuration with their defaults."""
    return {
        field.name: field.default_factory() if callable(field.default_factory) else field.default
        for field in dataclasses.fields(_library("reasoning_gym.factory").DATASETS[name][1])
        if field.name not in _OURS
    }


def levels(name: str) -> dict[str, list[Any]]:
    """Return the values that the library's curriculum gives to each part of a task, from easy to hard."""
    factory = _library("reasoning_gym.factory")
    if not factory.has_curriculum(name):
        return {}
    return {part.name: list(part.levels) for part in factory.create_curriculum(name).attributes.values()}


def version() -> str | None:
    """Return the library's version; None without it."""
    try:
        return metadata.version("reasoning-gym")
    except metadata.PackageNotFoundError:
        return None


def _library(module: str) -> Any:
    if version() is None:
        raise DataError(f"{GYM}...: needs reasoning-gym, which is not installed; {install('tasks')}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it depends on
        import_module("reasoning_gym")
    return import_module(module)


def _is_test(question: str) -> bool:
    digest = hashlib.blake2b(question.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % TEST_ONE_IN == 0
