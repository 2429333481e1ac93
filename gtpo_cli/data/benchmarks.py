"""The benchmarks: each one's place on the hub, its column names, and the reader of its gold answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gtpo_cli.data.local import SourcedRow, Table, find_files, nearest, open_files
from gtpo_cli.data.problems import LoadedProblems, Side, UsableCheck
from gtpo_cli.data.reading import GoldReader, Split, boxed_gold, own_gold, read_table
from gtpo_cli.errors import DataError
from gtpo_cli.hub import offline_remedy, only_the_cache_if_unreachable
from gtpo_cli.recipe.data import DEFAULT_SPLIT, OWN, SourceRecipe, dataset_parts, is_task
from gtpo_cli.text import one_line
from gtpo_cli.types import CodeName


@dataclass(frozen=True, slots=True)
class HubSource:
    """The place of a data set on the hub. `splits` maps our names of splits to the hub's; None: the names are equal."""

    id: str
    config: str | None
    splits: Mapping[str, str] | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class BenchmarkSpec:
    """The definition of a benchmark.

    `columns` maps a meaning ("question", "answer", "solution", "choices") to column names, of which one must be
    there. The question is in the first column with text, or in all of them, if they are `joined`: then all must be
    there. `where` has the lowest and the highest number of a column in the rows to use. `hub` is None for benchmarks
    that exist only as files. `answer_tag`: see `load_problems`.
    """

    columns: Mapping[str, tuple[str, ...]]
    read_gold: GoldReader
    hub: HubSource | None = None
    joined: bool = False
    where: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    answer_tag: str | None = None


def read_source(
    data: SourceRecipe,
    is_usable: UsableCheck,
    *,
    side: Side,
    id_prefix: str,
    with_columns: bool,
    answer_tag: str | None = None,
) -> LoadedProblems:
    """Read the problems of a set that is not generated: see `load_problems`. Raises DataError."""
    spec = replace(own_spec(data) if data.benchmark in OWN else BENCHMARKS[data.benchmark], answer_tag=answer_tag)
    split = Split(side, data.held_out) if data.held_out else None
    table, name = open_source(data)
    prefix = f"{id_prefix}{data.benchmark}/{name}"
    return read_table(table, spec, prefix, data.limit, is_usable, split=split, with_columns=with_columns)


def open_source(data: SourceRecipe) -> tuple[Table, str]:
    """Open the split of a set that is not generated. Return its rows and the name of its file or split. Raises
    DataError."""
    if data.path is not None:
        path = _expand_user(data.path)
        name, files = find_files(path, data.split)
        if not path.is_dir() and data.split != DEFAULT_SPLIT:
            raise DataError(
                f"data.split: {data.split} would have no effect, since {path} is not a folder; leave it out, or set "
                f"data.path to a folder with {data.split}{path.suffix}"
            )
        return open_files(data.path, files), name
    hub = hub_source(data)
    assert hub is not None, "the recipe requires data.path without a hub data set"
    return hub_table(data.benchmark, hub, data.split), data.split


def hub_source(data: SourceRecipe) -> HubSource | None:
    """Return the place of a set on the hub; None for files and generated sets."""
    if data.path is not None or is_task(data.benchmark):
        return None
    if data.dataset is not None:
        name, config, revision = dataset_parts(data.dataset)
        return HubSource(name, config, None, revision)
    return BENCHMARKS[data.benchmark].hub if data.benchmark in BENCHMARKS else None


def _expand_user(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(f"data.path: {path}: there is no such user; write the path out") from error


def own_spec(data: SourceRecipe) -> BenchmarkSpec:
    """Return how to read a source of the user's own."""
    columns = data.columns
    names = columns.model_dump(exclude_none=True)
    if isinstance(data.gold, CodeName):
        del names["answer"]
    return BenchmarkSpec(
        {meaning: name if isinstance(name, tuple) else (name,) for meaning, name in names.items()},
        own_gold(data.gold, answer=columns.answer, solution=columns.solution),
        joined=isinstance(columns.question, tuple),
        where=data.where,
    )


_ANSWER = {"question": ("question", "problem"), "answer": ("answer",)}
_BOX_OR_ANSWER = _ANSWER | {"answer": ("solution", "answer")}
_TRAIN_AND_TEST = {"train": "train", "test": "test"}
_TEST = {"test": "test"}
_HASHES, _COLUMN = own_gold("hashes", solution=None), own_gold("column", solution="solution")

BENCHMARKS: Mapping[str, BenchmarkSpec] = {
    "gsm8k": BenchmarkSpec(_ANSWER, _HASHES, HubSource("openai/gsm8k", "main", _TRAIN_AND_TEST)),
    "math": BenchmarkSpec(
        _BOX_OR_ANSWER, boxed_gold, HubSource("DigitalLearningGmbH/MATH-lighteval", "default", _TRAIN_AND_TEST)
    ),
    "math500": BenchmarkSpec(_BOX_OR_ANSWER, boxed_gold, HubSource("HuggingFaceH4/MATH-500", None, _TEST)),
    # Its 30 problems are for testing, but the hub calls their only split train.
    "aime24": BenchmarkSpec(_ANSWER, _COLUMN, HubSource("HuggingFaceH4/aime_2024", None, {"test": "train"})),
    "aime25": BenchmarkSpec(_ANSWER, _COLUMN, HubSource("math-ai/aime25", None, _TEST)),
    "amc23": BenchmarkSpec(_ANSWER, _COLUMN, HubSource("math-ai/amc23", None, _TEST)),
}


def hub_table(name: str, hub: HubSource, split: str) -> Table:
    """Load a split of a data set. `name` is the recipe's name for the set. Raises DataError that says what to do."""
    if hub.splits is not None and split not in hub.splits:
        known = " and ".join(hub.splits)
        raise DataError(f"data.split: {name} has no split {split}; it has {known}{nearest(split, hub.splits)}")
    import httpx
    from datasets import ClassLabel, load_dataset
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    hub_split = split if hub.splits is None else hub.splits[split]
    try:
        with only_the_cache_if_unreachable():
            dataset = load_dataset(hub.id, hub.config, split=hub_split, revision=hub.revision)
    except (OSError, ValueError, RuntimeError, KeyError, DatasetsError, httpx.HTTPError) as error:
        detail = one_line(str(error)) or type(error).__name__
        why = f"cannot be loaded ({detail})"
        if isinstance(error, DatasetNotFoundError):
            why = "the hub has no such data set, or this machine's login may not read it"
            if hub.revision is not None and detail.startswith("Revision"):
                why = f"the hub has no revision {hub.revision} of it (data.dataset: {hub.id}@REVISION)"
        elif isinstance(error, (ConnectionError, httpx.HTTPError)):
            why = f"the hub cannot be reached ({detail})"
        raise DataError(f"{hub.id}: {why}; {_remedy(hub, detail, split)}") from error
    where = f"{hub.id}[{split}]"

    classes = {name: kind.names for name, kind in dataset.features.items() if isinstance(kind, ClassLabel)}

    def rows(names: Sequence[str]) -> Iterator[SourcedRow]:
        return ((f"{where}:{number}", row) for number, row in enumerate(dataset.select_columns(list(names)), start=1))

    return Table(where, tuple(dataset.column_names), rows(dataset.column_names), rows, classes)


def _remedy(hub: HubSource, detail: str, split: str) -> str:
    if hub.splits is None and ("onfig" in detail and "vailable" in detail):
        return f"name one of them: data.dataset: {hub.id}:CONFIGURATION"
    if hub.splits is None and "plit" in detail and "hould be one of" in detail:
        return (
            f"there is no split {split}: set data.split (for gtpo init and eval: --split) to one of them; without a "
            "test split, data.held_out keeps a share of the questions from training"
        )
    if "scripts are no longer supported" in detail:
        return f"its rows come from a script, which is not run; try data.dataset: {hub.id}@refs/convert/parquet"
    if hub.splits is None:
        return (
            f"download a copy with a network (hf download --repo-type dataset {hub.id} --local-dir FOLDER) and set "
            "data.dataset to the folder, or data.path to a file"
        )
    return (
        f"set data.path to a local copy (for gtpo eval: --data-path), a file or a folder with {split}.jsonl, .parquet "
        f"or .csv, or {offline_remedy()}"
    )
