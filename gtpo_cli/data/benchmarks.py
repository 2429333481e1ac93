"""The benchmarks: where each one lives on the hub, what its columns are called, and how its gold answer is read.

`load_problems` is the one door: from a recipe's `data` section to problems that can be scored, plus the rows that were
dropped. A row is dropped, counted and named, never repaired: no question, no gold answer, or a gold answer that the
rewards cannot compare with anything (it could never score).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from gtpo_cli.data.arithmetic import DEFAULT_COUNTS, arithmetic_problems
from gtpo_cli.data.gold import UnusableRowError, boxed_gold, column_gold, gsm8k_gold, shown, text_in
from gtpo_cli.data.local import (
    DroppedRow,
    Row,
    Table,
    find_split_file,
    nearest,
    open_table,
    summarise_dropped,
)
from gtpo_cli.errors import DataError
from gtpo_cli.hub import offline_remedy, only_the_cache_if_unreachable
from gtpo_cli.recipe.schema import ColumnsRecipe, DataRecipe, RewardsRecipe
from gtpo_cli.text import one_line
from gtpo_cli.types import Problem

UsableCheck = Callable[[Sequence[str]], Sequence[bool]]

# Rows read between two checks of their gold answers; a limit reads no further than the chunk that reaches it.
CHUNK_ROWS = 512


@dataclass(frozen=True, slots=True)
class LoadedProblems:
    """Usable problems in the order of the data, and the rows that were dropped on the way."""

    problems: tuple[Problem, ...]
    dropped: tuple[DroppedRow, ...] = ()


@dataclass(frozen=True, slots=True)
class HubSource:
    """Where a benchmark is on the hub. `splits`: name of a split here -> its name there."""

    id: str
    config: str | None
    splits: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BenchmarkSpec:
    """What makes a benchmark.

    `question`: names its column goes by; the first that has text is taken. `needs`: groups of columns of which one must
    be there. `read_gold`: row -> (gold answer, worked solution or None), raising UnusableRowError. `hub`: None for
    benchmarks that only exist as files.
    """

    question: tuple[str, ...]
    needs: tuple[tuple[str, ...], ...]
    read_gold: Callable[[Row], tuple[str, str | None]]
    hub: HubSource | None = None

    @property
    def columns(self) -> tuple[tuple[str, ...], ...]:
        """Of each group one column must be there."""
        return self.question, *self.needs


def load_problems(data: DataRecipe, *, seed: int, is_usable: UsableCheck | None = None) -> LoadedProblems:
    """The problems of a recipe's `data` section: from `data.path`, else the hub; `arithmetic` is generated from `seed`.

    `data.limit` keeps the first so many usable problems and reads no further. `is_usable` maps gold answers to whether
    a reward can compare with them; by default `EqualityWorkers.usable_many`, from workers of its own.
    Prompts are not made here, so `max_prompt_tokens` is not applied: see `encode_prompts`.
    Raises DataError when the file, split, columns or hub data set cannot be read, or no row is usable; RewardError when
    the workers cannot be started.
    """
    if data.benchmark == "arithmetic":
        if data.split not in DEFAULT_COUNTS:
            raise DataError(f"data.split: arithmetic has no split {data.split}; it has {' and '.join(DEFAULT_COUNTS)}")
        count = data.limit or DEFAULT_COUNTS[data.split]
        return LoadedProblems(arithmetic_problems(count, split=data.split, seed=seed))
    spec = _local_spec(data.columns) if data.benchmark == "local" else BENCHMARKS[data.benchmark]
    if data.path is None:
        assert spec.hub is not None, "the recipe asks for data.path where there is no hub data set"
        table, name = hub_table(data.benchmark, spec.hub, data.split), data.split
    else:
        file = find_split_file(_home(data.path), data.split)
        table, name = open_table(file), file.stem
    read = partial(read_table, table, spec, f"{data.benchmark}/{name}", data.limit)
    if is_usable is not None:
        return read(is_usable)
    from gtpo_cli.rewards import EqualityWorkers

    with EqualityWorkers() as workers:
        return read(workers.usable_many)


def gold_check(rewards: RewardsRecipe) -> UsableCheck | None:
    """The `is_usable` of a recipe: None (see `load_problems`), or one that takes any text, where answers are not
    compared as mathematics: as text, or not rewarded at all (plug-ins read the gold answer as they like).
    """
    return (lambda golds: [True] * len(golds)) if rewards.takes_any_gold else None  # the empty ones are dropped before


def read_table(
    table: Table, spec: BenchmarkSpec, id_prefix: str, limit: int | None, is_usable: UsableCheck
) -> LoadedProblems:
    """Turn the rows of a table into problems with ids "<id_prefix>/<row>" (rows counted from 1, bad ones included)."""
    if table.columns is not None:
        if fault := _missing_column(spec, table.columns):
            raise DataError(f"{table.where}: {fault}; {_COLUMNS_REMEDY}")
        twice = [name for names in spec.columns for name in names if table.columns.count(name) > 1]
        if twice:
            raise DataError(f"{table.where}: two columns are called {twice[0]}; rename the one that is not meant")
    problems: list[Problem] = []
    dropped: list[DroppedRow] = []
    rows = enumerate(table.rows, start=1)
    while limit is None or len(problems) < limit:
        chunk = list(islice(rows, CHUNK_ROWS if limit is None else min(CHUNK_ROWS, limit - len(problems))))
        if not chunk:
            break
        read = [_read_row(source, row, spec, f"{id_prefix}/{number}") for number, (source, row) in chunk]
        verdicts = iter(is_usable([item.gold for item in read if isinstance(item, Problem)]))
        for item in read:
            if isinstance(item, DroppedRow):
                dropped.append(item)
            elif next(verdicts):
                problems.append(item)
            else:
                dropped.append(DroppedRow(item.source, f"unusable gold answer: {shown(item.gold)}"))
    if not problems:
        why = f"{summarise_dropped(dropped)}; {_remedy(dropped)}" if dropped else "it has no rows"
        raise DataError(f"{table.where}: no usable problem; {why}")
    return LoadedProblems(tuple(problems), tuple(dropped))


def hub_table(benchmark: str, hub: HubSource, split: str) -> Table:
    """A split of a benchmark through the `datasets` library and its cache. Raises DataError that says what to do."""
    if split not in hub.splits:
        known = " and ".join(hub.splits)
        raise DataError(f"data.split: {benchmark} has no split {split}; it has {known}{nearest(split, hub.splits)}")
    import httpx
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    offline = (
        f"set data.path to a local copy (a file, or a folder with {split}.jsonl, .parquet or .csv; gtpo eval has "
        f"--data-path for it), or {offline_remedy()}"
    )
    try:
        with only_the_cache_if_unreachable():
            dataset = load_dataset(hub.id, hub.config, split=hub.splits[split])
    except (OSError, ValueError, DatasetsError, httpx.HTTPError) as error:
        said = one_line(str(error)) or type(error).__name__
        why = f"cannot be loaded ({said})"
        if isinstance(error, DatasetNotFoundError):
            why = "the hub has no such data set, or this machine's login may not read it"
        elif isinstance(error, (ConnectionError, httpx.HTTPError)):
            why = f"the hub cannot be reached ({said})"
        raise DataError(f"{hub.id}: {why}; {offline}") from error
    where = f"{hub.id}[{split}]"
    rows = ((f"{where}:{number}", row) for number, row in enumerate(dataset, start=1))
    return Table(where, tuple(dataset.column_names), rows)


def _read_row(source: str, row: Row | str, spec: BenchmarkSpec, problem_id: str) -> Problem | DroppedRow:
    if isinstance(row, str):
        return DroppedRow(source, row)
    try:
        if fault := _missing_column(spec, row):
            raise UnusableRowError(fault)
        question = text_in(row, spec.question)
        if question is None:
            raise UnusableRowError("no question")
        gold, solution = spec.read_gold(row)
    except UnusableRowError as error:
        return DroppedRow(source, str(error))
    return Problem(id=problem_id, question=question, gold=gold, solution=solution, source=source)


def _missing_column(spec: BenchmarkSpec, columns: Iterable[str]) -> str | None:
    there = list(columns)
    for names in spec.columns:
        if not any(name in there for name in names):
            listed = ", ".join(_listed(name) for name in there[:20]) or "none"
            return f"no column {' or '.join(names)}: there is {listed}{nearest(names[0], there)}"
    return None


def _listed(column: str) -> str:
    column = column if len(column) <= 40 else column[:37] + "..."
    return column if column.isprintable() else ascii(column)


_COLUMNS_REMEDY = "with benchmark: local, data.columns says which to read"
_REMEDIES = {
    "not JSON": "write one JSON object a line, as UTF-8",
    "no JSON object": "write one JSON object a line",
    "not UTF-8": "save the file as UTF-8",
    "not CSV": 'quote a field with " that holds a comma, a quote or a line break, and double the quotes in it',
    "wrong number of fields": "quote a field that holds a comma",
    "unusable gold answer": (
        "a gold answer is a number, an expression or a short text; where it is other text, set "
        "rewards.accuracy.equality: text"
    ),
}


def _remedy(dropped: Sequence[DroppedRow]) -> str:
    """What helps against the commonest fault of a file without a usable row."""
    kind = Counter(row.reason.partition(":")[0] for row in dropped).most_common(1)[0][0]
    return _REMEDIES.get(kind, _COLUMNS_REMEDY if kind.startswith("no column") else "correct the rows")


def _home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(f"data.path: {path}: there is no such user; write the path out") from error


def _local_spec(columns: ColumnsRecipe) -> BenchmarkSpec:
    return BenchmarkSpec(
        question=(columns.question,),
        needs=tuple((name,) for name in (columns.answer, columns.solution) if name is not None),
        read_gold=partial(column_gold, answer=columns.answer, solution=columns.solution),
    )


_QUESTION = ("question", "problem")
_BOX_OR_ANSWER = (("solution", "answer"),)
_ANSWER = (("answer",),)
_TRAIN_AND_TEST = {"train": "train", "test": "test"}
_TEST = {"test": "test"}

BENCHMARKS: Mapping[str, BenchmarkSpec] = {
    "gsm8k": BenchmarkSpec(_QUESTION, _ANSWER, gsm8k_gold, HubSource("openai/gsm8k", "main", _TRAIN_AND_TEST)),
    "math": BenchmarkSpec(
        _QUESTION,
        _BOX_OR_ANSWER,
        boxed_gold,
        HubSource("DigitalLearningGmbH/MATH-lighteval", "default", _TRAIN_AND_TEST),
    ),
    "math500": BenchmarkSpec(_QUESTION, _BOX_OR_ANSWER, boxed_gold, HubSource("HuggingFaceH4/MATH-500", None, _TEST)),
    # 30 problems to test on; their hub page happens to call the only split train.
    "aime24": BenchmarkSpec(
        _QUESTION, _ANSWER, column_gold, HubSource("HuggingFaceH4/aime_2024", None, {"test": "train"})
    ),
    "aime25": BenchmarkSpec(_QUESTION, _ANSWER, column_gold, HubSource("math-ai/aime25", None, _TEST)),
    "amc23": BenchmarkSpec(_QUESTION, _ANSWER, column_gold, HubSource("math-ai/amc23", None, _TEST)),
}
