"""Problems that can be scored, and the rows that were dropped on the way to them.

`load_problems` is the one door: from a set of problems that a recipe names to the problems. Files and hub data sets
are read by `benchmarks.py`, which is imported where a set has a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gtpo_cli.data import arithmetic, word_problems
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import GENERATED, OWN, ColumnsRecipe, DataRecipe, SourceRecipe
from gtpo_cli.recipe.rewards import RewardsRecipe
from gtpo_cli.types import Problem

UsableCheck = Callable[[Sequence[str]], Sequence[bool]]  # gold answers -> whether a reward can compare with each
Side = Literal["training", "test"]  # of a set whose questions are split: `data.held_out`

_GENERATORS = {
    "arithmetic": (arithmetic.arithmetic_problems, arithmetic.DEFAULT_COUNTS),
    "word_problems": (word_problems.word_problems, word_problems.DEFAULT_COUNTS),
}


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """A row that was left out. `source`: "path:line" (Parquet: path:row; hub: "id[split]:row"), all counted from 1.

    `reason` is "kind" or "kind: detail"; rows are counted by kind.
    """

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoadedProblems:
    """Usable problems in the order of the data, the rows that were dropped on the way, and the questions of the test
    side where the table is split (see `as_compared`)."""

    problems: tuple[Problem, ...]
    dropped: tuple[DroppedRow, ...] = ()
    held_out: frozenset[str] = frozenset()


def load_problems(
    data: SourceRecipe,
    *,
    seed: int,
    is_usable: UsableCheck | None = None,
    side: Side = "training",
    id_prefix: str = "",
    with_columns: bool = False,
) -> LoadedProblems:
    """The problems of a set: from `data.path`, else the hub; those of GENERATED are made from `seed`.

    `data.limit` keeps the first so many usable problems and reads no further. `is_usable` maps gold answers to whether
    a reward can compare with them; by default `EqualityWorkers.usable_many`, from workers of its own. `side`: of what
    `data.held_out` splits. `id_prefix`: in front of the problems' ids. `with_columns`: the problems keep their rows.
    Prompts are not made here, so `max_prompt_tokens` is not applied: see `encode_prompts`.
    Raises DataError when the file, split, columns or hub data set cannot be read, or no row is usable; RewardError when
    the workers cannot be started.
    """
    if data.benchmark not in OWN and data.columns != ColumnsRecipe():
        raise DataError(
            f"data.columns: {data.benchmark} has columns of its own, so these would not be read; remove them, or use "
            "benchmark: local or hub"
        )
    if data.benchmark in GENERATED:
        problems, counts = _GENERATORS[data.benchmark]
        if data.split not in counts:
            raise DataError(f"data.split: {data.benchmark} has no split {data.split}; it has {' and '.join(counts)}")
        return LoadedProblems(problems(data.limit or counts[data.split], split=data.split, seed=seed))
    from gtpo_cli.data.benchmarks import read_source

    if is_usable is not None:
        return read_source(data, is_usable, side=side, id_prefix=id_prefix, with_columns=with_columns)
    from gtpo_cli.rewards import EqualityWorkers

    with EqualityWorkers() as workers:
        return read_source(data, workers.usable_many, side=side, id_prefix=id_prefix, with_columns=with_columns)


def numbered(data: DataRecipe) -> Iterator[tuple[SourceRecipe, str]]:
    """Each source with what stands in front of its problems' ids, so that no two are the same."""
    for number, source in enumerate(data.sources, start=1):
        yield source, f"{number}/" if data.mixture else ""


def holds_nothing_out(source: SourceRecipe) -> bool:
    """Whether all of a source is trained on, and nothing of it is left to test on: one file without `held_out`."""
    return not source.held_out and source.path is not None and not Path(source.path).expanduser().is_dir()


def gold_check(rewards: RewardsRecipe) -> UsableCheck | None:
    """The `is_usable` of a recipe: None (see `load_problems`), or one that takes any text, where answers are not
    compared as mathematics: as text, or not rewarded at all (plug-ins read the gold answer as they like).
    """
    return (lambda golds: [True] * len(golds)) if rewards.takes_any_gold else None  # the empty ones are dropped before


def as_compared(question: str) -> str:
    """White space counts for nothing when it is asked whether two questions are the same."""
    return " ".join(question.split())


def summarise_dropped(dropped: Sequence[DroppedRow], *, shown: int = 3) -> str:
    """One line for a warning: how many rows were dropped, how many of each kind, and the first `shown` of them."""
    kinds = Counter(row.reason.partition(":")[0] for row in dropped)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    first = "; ".join(f"{row.source} {row.reason}" for row in dropped[:shown])
    more = "; ..." if len(dropped) > shown else ""
    return f"dropped {len(dropped)} row{'' if len(dropped) == 1 else 's'} ({counts}): {first}{more}"
