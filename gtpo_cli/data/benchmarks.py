"""The benchmarks: where each one lives on the hub, what its columns are called, and how its gold answer is read.

`load_problems` is the one door: from a set of problems that a recipe names to problems that can be scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from gtpo_cli.data.arithmetic import DEFAULT_COUNTS, arithmetic_problems
from gtpo_cli.data.gold import boxed_gold, column_gold, gsm8k_gold, own_gold
from gtpo_cli.data.held_out import Side
from gtpo_cli.data.hub_sets import HubSource, hub_table
from gtpo_cli.data.local import Table, find_split_file, open_table
from gtpo_cli.data.reading import BenchmarkSpec, LoadedProblems, Split, UsableCheck, read_table
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import DEFAULT_SPLIT, OWN, ColumnsRecipe, SourceRecipe
from gtpo_cli.recipe.rewards import RewardsRecipe
from gtpo_cli.recipe.section import CodeName


def load_problems(
    data: SourceRecipe,
    *,
    seed: int,
    is_usable: UsableCheck | None = None,
    side: Side = "training",
    id_prefix: str = "",
) -> LoadedProblems:
    """The problems of a set: from `data.path`, else the hub; `arithmetic` is generated from `seed`.

    `data.limit` keeps the first so many usable problems and reads no further. `is_usable` maps gold answers to whether
    a reward can compare with them; by default `EqualityWorkers.usable_many`, from workers of its own. `side`: of what
    `data.held_out` splits. `id_prefix`: in front of the problems' ids.
    Prompts are not made here, so `max_prompt_tokens` is not applied: see `encode_prompts`.
    Raises DataError when the file, split, columns or hub data set cannot be read, or no row is usable; RewardError when
    the workers cannot be started.
    """
    if data.benchmark not in OWN and data.columns != ColumnsRecipe():
        raise DataError(
            f"data.columns: {data.benchmark} has columns of its own, so these would not be read; remove them, or use "
            "benchmark: local or hub"
        )
    if data.benchmark == "arithmetic":
        if data.split not in DEFAULT_COUNTS:
            raise DataError(f"data.split: arithmetic has no split {data.split}; it has {' and '.join(DEFAULT_COUNTS)}")
        count = data.limit or DEFAULT_COUNTS[data.split]
        return LoadedProblems(arithmetic_problems(count, split=data.split, seed=seed))
    spec = _own_spec(data) if data.benchmark in OWN else BENCHMARKS[data.benchmark]
    split = Split(side, data.held_out, data.held_out_seed) if data.held_out else None
    table, name = open_source(data)
    read = partial(read_table, table, spec, f"{id_prefix}{data.benchmark}/{name}", data.limit, split=split)
    if is_usable is not None:
        return read(is_usable)
    from gtpo_cli.rewards import EqualityWorkers

    with EqualityWorkers() as workers:
        return read(workers.usable_many)


def open_source(data: SourceRecipe) -> tuple[Table, str]:
    """The rows of the split of a set that is not generated, and the name of its file or split. Raises DataError."""
    if data.path is not None:
        path = _home(data.path)
        file = find_split_file(path, data.split)
        if file == path and data.split != DEFAULT_SPLIT:
            raise DataError(
                f"data.split: {data.split} would not be looked at, since {path} is one file; leave it out, or give "
                f"data.path a folder with {data.split}{path.suffix}"
            )
        return open_table(file), file.stem
    hub = hub_source(data)
    assert hub is not None, "the recipe asks for data.path where there is no hub data set"
    return hub_table(data.benchmark, hub, data.split), data.split


def hub_source(data: SourceRecipe) -> HubSource | None:
    """Where on the hub a set's rows are; None for files and what is generated."""
    if data.path is not None or data.benchmark == "arithmetic":
        return None
    if data.dataset is not None:
        return HubSource(data.dataset.id, data.dataset.config, None, data.dataset.revision)
    return BENCHMARKS[data.benchmark].hub if data.benchmark in BENCHMARKS else None


def gold_check(rewards: RewardsRecipe) -> UsableCheck | None:
    """The `is_usable` of a recipe: None (see `load_problems`), or one that takes any text, where answers are not
    compared as mathematics: as text, or not rewarded at all (plug-ins read the gold answer as they like).
    """
    return (lambda golds: [True] * len(golds)) if rewards.takes_any_gold else None  # the empty ones are dropped before


def _home(path: str) -> Path:
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
    # 30 problems to test on; their hub page happens to call the only split train.
    "aime24": BenchmarkSpec(_ANSWER, column_gold, HubSource("HuggingFaceH4/aime_2024", None, {"test": "train"})),
    "aime25": BenchmarkSpec(_ANSWER, column_gold, HubSource("math-ai/aime25", None, _TEST)),
    "amc23": BenchmarkSpec(_ANSWER, column_gold, HubSource("math-ai/amc23", None, _TEST)),
}
