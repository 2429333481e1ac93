"""The benchmarks: each one's place on the hub, its column names, and the reader of its gold answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gtpo_cli.data.files import find_files, open_files
from gtpo_cli.data.gold import boxed_gold, column_gold, gsm8k_gold, own_gold
from gtpo_cli.data.hub_sets import HubSource, hub_table
from gtpo_cli.data.local import Table
from gtpo_cli.data.problems import LoadedProblems, Side, UsableCheck
from gtpo_cli.data.reading import BenchmarkSpec, Split, read_table
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import DEFAULT_SPLIT, GENERATED, OWN, SourceRecipe, dataset_parts
from gtpo_cli.types import CodeName


def read_source(
    data: SourceRecipe, is_usable: UsableCheck, *, side: Side, id_prefix: str, with_columns: bool
) -> LoadedProblems:
    """Read the problems of a set that is not generated: see `load_problems`. Raises DataError."""
    spec = _own_spec(data) if data.benchmark in OWN else BENCHMARKS[data.benchmark]
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
    if data.path is not None or data.benchmark in GENERATED:
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


def _own_spec(data: SourceRecipe) -> BenchmarkSpec:
    columns = data.columns
    names = {"question": columns.question, "answer": columns.answer, "solution": columns.solution}
    if isinstance(data.gold, CodeName):
        del names["answer"]
    return BenchmarkSpec(
        {meaning: (name,) for meaning, name in names.items() if name is not None},
        own_gold(data.gold, answer=columns.answer, solution=columns.solution),
    )


_ANSWER = {"question": ("question", "problem"), "answer": ("answer",)}
_BOX_OR_ANSWER = _ANSWER | {"answer": ("solution", "answer")}
_TRAIN_AND_TEST = {"train": "train", "test": "test"}
_TEST = {"test": "test"}

BENCHMARKS: Mapping[str, BenchmarkSpec] = {
    "gsm8k": BenchmarkSpec(_ANSWER, gsm8k_gold, HubSource("openai/gsm8k", "main", _TRAIN_AND_TEST)),
    "math": BenchmarkSpec(
        _BOX_OR_ANSWER, boxed_gold, HubSource("DigitalLearningGmbH/MATH-lighteval", "default", _TRAIN_AND_TEST)
    ),
    "math500": BenchmarkSpec(_BOX_OR_ANSWER, boxed_gold, HubSource("HuggingFaceH4/MATH-500", None, _TEST)),
    # Its 30 problems are for testing, but the hub calls their only split train.
    "aime24": BenchmarkSpec(_ANSWER, column_gold, HubSource("HuggingFaceH4/aime_2024", None, {"test": "train"})),
    "aime25": BenchmarkSpec(_ANSWER, column_gold, HubSource("math-ai/aime25", None, _TEST)),
    "amc23": BenchmarkSpec(_ANSWER, column_gold, HubSource("math-ai/amc23", None, _TEST)),
}
