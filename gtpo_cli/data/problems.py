"""Load problems that can be scored, and list the rows that were dropped.

`load_problems` is the only entry point: it loads the problems of any set that a recipe names. `benchmarks.py` reads
files and hub data sets, and is imported only for those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import OWN, ColumnsRecipe, DataRecipe, SourceRecipe, is_task
from gtpo_cli.recipe.rewards import RewardsRecipe
from gtpo_cli.text import shown
from gtpo_cli.types import Problem

UsableCheck = Callable[[Sequence[str]], Sequence[bool]]  # gold answers -> whether each can be compared
Side = Literal["training", "test"]  # of a set that `data.held_out` splits


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """A row that was left out. `source`: "path:line" (Parquet: path:row; hub: "id[split]:row"), counted from 1.

    `reason` is "kind" or "kind: detail". Rows are counted by kind.
    """

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoadedProblems:
    """Usable problems in the order of the data, the dropped rows, the questions of the test side if the table is split
    (see `normalized_question`), the columns that nothing reads, as far as that is known, and how many rows `data.where`
    left out."""

    problems: tuple[Problem, ...]
    dropped: tuple[DroppedRow, ...] = ()
    held_out: frozenset[str] = frozenset()
    unused: tuple[str, ...] = ()
    outside: int = 0


def load_problems(
    data: SourceRecipe,
    *,
    seed: int,
    is_usable: UsableCheck | None = None,
    side: Side = "training",
    id_prefix: str = "",
    with_columns: bool = False,
    leveled: bool = False,
    answer_tag: str | None = None,
) -> LoadedProblems:
    """Load the problems of a set from `data.path` or else from the hub; those of a task are made from `seed`.

    `data.limit` keeps a sample of the usable problems (`reading.read_table`). `is_usable` tells for each gold answer
    whether a reward can compare it; the default is `EqualityWorkers.usable_many` with new workers. `side` chooses a
    side of `data.held_out`. `id_prefix` is put before the problems' ids. With `with_columns`, the problems keep their
    rows; with `leveled`, a task makes those of each of its levels. `answer_tag`: the recipe's, which may stand around a
    gold answer as the common ones may. `max_prompt_tokens` is applied later: see
    `encode_prompts`.
    Raises DataError if the file, split, columns or hub data set cannot be read, or if no row is usable; RewardError if
    the workers cannot be started.
    """
    if data.benchmark not in OWN and data.columns != ColumnsRecipe():
        raise DataError(
            f"data.columns: {data.benchmark} has its own columns, so this key has no effect; remove it, or use "
            "benchmark: local or hub"
        )
    if is_usable is None:
        from gtpo_cli.rewards import EqualityWorkers

        with EqualityWorkers() as workers:
            return load_problems(
                data, seed=seed, is_usable=workers.usable_many, side=side, id_prefix=id_prefix,
                with_columns=with_columns, leveled=leveled, answer_tag=answer_tag,
            )  # fmt: skip
    if not is_task(data.benchmark):
        from gtpo_cli.data.benchmarks import read_source

        return read_source(
            data, is_usable, side=side, id_prefix=id_prefix, with_columns=with_columns, answer_tag=answer_tag
        )
    from gtpo_cli.tasks.making import task_problems

    made = task_problems(
        data.benchmark, data.config, data.split, seed, data.limit, leveled=leveled, id_prefix=id_prefix
    )
    compared = [problem for problem in made if problem.entry is None]
    fits = is_usable([problem.gold for problem in compared])
    wrong = {problem.id: problem for problem, fit in zip(compared, fits, strict=True) if not fit}
    dropped = tuple(DroppedRow(id_, f"unusable gold answer: {shown(one.gold)}") for id_, one in wrong.items())
    if dropped and len(dropped) == len(made):
        raise DataError(f"{data.benchmark}: no usable problem; {summarise_dropped(dropped)}")
    return LoadedProblems(tuple(problem for problem in made if problem.id not in wrong), dropped)


def sources_with_prefix(data: DataRecipe) -> Iterator[tuple[SourceRecipe, str]]:
    """Yield each source with a prefix that makes its problems' ids unique."""
    for number, source in enumerate(data.sources, start=1):
        yield source, f"{number}/" if data.mixture else ""


def holds_nothing_out(source: SourceRecipe) -> bool:
    """Whether training uses all of a source, so that none is left for a test: one file without `held_out`."""
    return not source.held_out and source.path is not None and not Path(source.path).expanduser().is_dir()


def any_gold(golds: Sequence[str]) -> list[bool]:
    """A check that takes any gold answer; empty ones were dropped before."""
    return [True] * len(golds)


def gold_check(rewards: RewardsRecipe) -> UsableCheck | None:
    """Return the `is_usable` of a recipe: None (see `load_problems`), or a check that accepts any text if answers are
    not compared as mathematics. Then they are compared as text, or only plug-ins read the gold answer.
    """
    return any_gold if rewards.takes_any_gold else None


def normalized_question(question: str) -> str:
    """Normalise white space, so that questions that differ only in it are equal."""
    return " ".join(question.split())


def summarise_dropped(dropped: Sequence[DroppedRow], *, most: int = 3) -> str:
    """Write one line for a warning: the number of dropped rows, in all and by kind, and the first `most` of them."""
    kinds = Counter(row.reason.partition(":")[0] for row in dropped)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    first = "; ".join(f"{row.source} {row.reason}" for row in dropped[:most])
    more = "; ..." if len(dropped) > most else ""
    return f"dropped {len(dropped)} row{'' if len(dropped) == 1 else 's'} ({counts}): {first}{more}"
