"""Choose the problems of an evaluation, and encode their prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gtpo_cli.data import Prompt, PromptEncoder, usable_prompts
from gtpo_cli.data.problems import holds_nothing_out, sources_with_prefix
from gtpo_cli.data.reading import has_column, value_in
from gtpo_cli.errors import DataError
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.data import DEFAULT_SPLIT, OWN, ColumnsRecipe, SourceRecipe, is_task
from gtpo_cli.rewards import check_rewards
from gtpo_cli.text import one_line, some

MOST_PARTS = 50


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The encoded prompts of a benchmark's usable problems. `dropped` counts unusable problems; `notes` say why.
    `parts`: the ids of the problems by their value in a column, if one was named."""

    name: str
    split: str
    prompts: list[Prompt]
    dropped: int = 0
    notes: tuple[str, ...] = ()
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def most_frequent(self, ids: Collection[str] | None = None) -> tuple[str, float] | None:
        """Return the most frequent gold answer of these problems (all without `ids`) and its share, 0..1.

        A model that always gives it has this accuracy. Answers are compared as texts. None if a problem has no gold
        answer, as a task's may.
        """
        wanted = None if ids is None else set(ids)
        golds = Counter(problem.gold for problem, _ in self.prompts if wanted is None or problem.id in wanted)
        answer, count = golds.most_common(1)[0]
        return None if "" in golds else (answer, count / golds.total())


def load_benchmark(
    recipe: Recipe,
    name: str,
    encoder: PromptEncoder,
    *,
    max_seq_length: int,
    split: str = "test",
    data_path: Path | None = None,
    by: str | None = None,
) -> Benchmark:
    """Load a sample of `evaluation.limit` problems of a benchmark's split, in the form of `encoder`.

    With `data.held_out`, the split "test" is the part that was kept from training. Of a mixture, every part with held
    out problems is used. Problems whose prompt is longer than `data.max_prompt_tokens`, or leaves no room within
    `max_seq_length`, are dropped and counted.

    `data_path` is a file, a folder with one file per split, or a folder with one such folder per benchmark. Without it,
    the recipe's `data.path` if that is a folder of this benchmark, or else the hub. `by`: see
    `Benchmark`. Raises DataError, also for a split or path without effect; RewardError as `check_rewards`.
    """
    if is_task(name) and data_path is not None:
        raise DataError(f"benchmark {name}: is generated, so {data_path} would not be read; use --benchmark local")
    prompts, dropped, notes = list[Prompt](), 0, list[str]()
    sources = _sources(recipe, name, data_path)
    for source, prefix in sources:
        if split == "test" and len(sources) > 1 and holds_nothing_out(source):
            notes.append(f"{source.name}: left out, as all of it was trained on; data.held_out keeps a share")
            continue
        kept = split == "test" and source.held_out > 0 and _is_own(source, data_path)
        changes = {"limit": recipe.evaluation.limit} | ({} if kept else _elsewhere(source, name, split, data_path))
        if kept and data_path is not None:
            changes["path"] = str(data_path)
        if source.where and "where" in changes:
            notes.append(f"{source.name}: split {split} is used whole; data.where chooses among problems of training")
        usable = usable_prompts(
            recipe,
            source.model_copy(update=changes),
            encoder,
            max_seq_length=max_seq_length,
            side="test" if kept else "training",
            id_prefix=prefix,
            with_columns=by is not None,
        )
        prompts += usable.prompts
        dropped += usable.dropped
        notes += usable.notes
    notes += encoder.notes
    if not prompts:
        raise DataError(f"benchmark {name}: {'; '.join(notes)}; so no problem is left")
    check_rewards(recipe.rewards, [problem for problem, _ in prompts])
    return Benchmark(name, split, prompts, dropped, tuple(notes), _parts(name, prompts, by) if by else {})


def _parts(name: str, prompts: list[Prompt], column: str) -> dict[str, list[str]]:
    found = list(dict.fromkeys(key for problem, _ in prompts for key in problem.columns))
    if not has_column(found, column):
        raise DataError(f"--by {column}: {name} has no such column; found {some(found) if found else 'none'}")
    parts: dict[str, list[str]] = {}
    for problem, _ in prompts:
        parts.setdefault(one_line(str(value_in(problem.columns, column))), []).append(problem.id)
    if len(parts) > MOST_PARTS:
        raise DataError(
            f"--by {column}: {name} has {len(parts)} different values in it, and {MOST_PARTS} can be shown; name a "
            "column of kinds or levels"
        )
    return dict(sorted(parts.items()))


def _sources(recipe: Recipe, name: str, data_path: Path | None) -> list[tuple[SourceRecipe, str]]:
    """Return the recipe's sources of a benchmark, each with the prefix of its ids; or a new source if it has none."""
    data = recipe.data
    if name == "mixture" and data.mixture and data_path is None:
        return list(sources_with_prefix(data))
    if name == "mixture":
        raise DataError(
            "benchmark mixture: is the parts of a recipe's data.mixture"
            + ("; name a part with --benchmark, such as local" if data.mixture else ", and this recipe has none")
        )
    if found := [(source, prefix) for source, prefix in sources_with_prefix(data) if source.benchmark == name]:
        # a single part has no prefix, so its ids are the same as without a mixture
        return [(found[0][0], "")] if data_path is not None or len(found) == 1 else found
    changes: dict[str, Any] = {"benchmark": name, "path": None, "dataset": None, "held_out": 0.0}
    if name not in OWN:  # the recipe's columns are for other data
        changes |= {"columns": ColumnsRecipe(), "gold": "auto", "where": {}, "config": {}}
    return [(data.model_copy(update=changes), "")]


def _is_own(source: SourceRecipe, data_path: Path | None) -> bool:
    """Whether it is the training data, perhaps moved to another folder."""
    return data_path is None or (source.path is not None and data_path.name == Path(source.path).name)


def _elsewhere(source: SourceRecipe, name: str, split: str, data_path: Path | None) -> dict[str, Any]:
    """Return the keys that turn a source to another split or other data; `held_out` and `where` are only for the
    training split."""
    changes: dict[str, Any] = {"split": split}
    if split != source.split or not _is_own(source, data_path):
        changes |= {"held_out": 0.0, "where": {}}
    if data_path is not None:
        folder = data_path.expanduser() / name
        changes["path"] = str(folder if folder.is_dir() else data_path)
        if not data_path.expanduser().is_dir():
            known = {"test", source.split} if _is_own(source, data_path) else {"test"}
            if split not in known:
                raise DataError(
                    f"--split {split}: {data_path} is not a folder, so it has no splits and is used whole; leave "
                    f"--split out, or name a folder with one file per split ({split}.jsonl)"
                )
            changes["split"] = DEFAULT_SPLIT
        return changes
    if name == "local" and source.path is None:
        raise DataError("benchmark local: name a file, or a folder with one file per split: gtpo eval --data-path PATH")
    if name == "hub" and source.path is None and source.dataset is None:
        raise DataError(
            "benchmark hub: name the data set: gtpo eval --set data.benchmark=hub --set data.dataset=owner/name, or a "
            "copy of it with --data-path"
        )
    if source.path is not None and split != source.split and not Path(source.path).expanduser().is_dir():
        raise DataError(
            f"data.path: all of {source.path} was trained on, so nothing is left to test on; name another file with "
            "gtpo eval --data-path, or train with data.held_out: 0.1, or with data.path as a folder "
            "with one file per split (train.jsonl, test.jsonl)"
        )
    return changes
