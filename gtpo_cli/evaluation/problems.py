"""Which problems an evaluation asks, and the prompts made of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gtpo_cli.data import Prompt, usable_prompts
from gtpo_cli.data.problems import holds_nothing_out, numbered
from gtpo_cli.errors import DataError
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.data import DEFAULT_SPLIT, GENERATED, OWN, ColumnsRecipe, SourceRecipe
from gtpo_cli.rewards import check_columns


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`prompts`: the usable problems, encoded. `dropped`: how many could not be used; `notes` say why."""

    name: str
    split: str
    prompts: list[Prompt]
    dropped: int = 0
    notes: tuple[str, ...] = ()


def load_benchmark(
    recipe: Recipe,
    name: str,
    tokenizer: Any,
    *,
    max_seq_length: int,
    split: str = "test",
    data_path: Path | None = None,
) -> Benchmark:
    """The first `evaluation.limit` problems of a benchmark's split, with the recipe's system prompt.

    The split "test" of a set with `data.held_out` is what that keeps from training. Of a mixture each part is asked,
    but those of which nothing was kept. Problems whose prompt is longer than `data.max_prompt_tokens`, or leaves no
    room within `max_seq_length`, are dropped and counted.

    `data_path`: a file, or a folder with one file a split, or a folder with one such folder a benchmark. Without it
    the recipe's own `data.path` where it is the recipe's benchmark and a folder, else the hub.
    Raises DataError, also for a split or path that would not be looked at; RewardError as `check_columns`.
    """
    if name in GENERATED and data_path is not None:
        raise DataError(
            f"benchmark {name}: is generated, so {data_path} would not be read; ask it with --benchmark local"
        )
    prompts, dropped, notes = list[Prompt](), 0, list[str]()
    sources = _sources(recipe, name, data_path)
    for source, prefix in sources:
        if split == "test" and len(sources) > 1 and holds_nothing_out(source):
            notes.append(f"{source.name}: the one file that was trained on is not asked; data.held_out keeps a share")
            continue
        kept = split == "test" and source.held_out > 0 and _is_own(source, data_path)
        changes = {"limit": recipe.evaluation.limit} | ({} if kept else _elsewhere(source, name, split, data_path))
        if kept and data_path is not None:
            changes["path"] = str(data_path)
        usable = usable_prompts(
            recipe,
            source.model_copy(update=changes),
            tokenizer,
            max_seq_length=max_seq_length,
            side="test" if kept else "training",
            id_prefix=prefix,
        )
        prompts += usable.prompts
        dropped += usable.dropped
        notes += usable.notes
    if not prompts:
        raise DataError(f"benchmark {name}: {'; '.join(notes)}; so nothing is left to ask")
    check_columns(recipe.rewards, [problem for problem, _ in prompts])
    return Benchmark(name, split, prompts, dropped, tuple(notes))


def _sources(recipe: Recipe, name: str, data_path: Path | None) -> list[tuple[SourceRecipe, str]]:
    """What of the recipe the benchmark is, each with the prefix of its ids; one that it does not have, by its name."""
    data = recipe.data
    if name == "mixture" and data.mixture and data_path is None:
        return list(numbered(data))
    if name == "mixture":
        raise DataError(
            "benchmark mixture: is the parts of a recipe's data.mixture"
            + ("; name a part's with --benchmark, as local" if data.mixture else ", and this recipe has none")
        )
    if found := [(source, prefix) for source, prefix in numbered(data) if source.benchmark == name]:
        # one part alone has the ids that others know its problems by
        return [(found[0][0], "")] if data_path is not None or len(found) == 1 else found
    changes: dict[str, Any] = {"benchmark": name, "path": None, "dataset": None, "held_out": 0.0}
    if name not in OWN:  # which the recipe does not describe
        changes |= {"columns": ColumnsRecipe(), "gold": "auto"}
    return [(data.model_copy(update=changes), "")]


def _is_own(source: SourceRecipe, data_path: Path | None) -> bool:
    """Whether that is the data that was trained on, be it in another folder by now."""
    return data_path is None or (source.path is not None and data_path.name == Path(source.path).name)


def _elsewhere(source: SourceRecipe, name: str, split: str, data_path: Path | None) -> dict[str, Any]:
    """The changes of a source to a split of it, or to other data; `held_out` only splits the one that is trained on."""
    changes: dict[str, Any] = {"split": split}
    if split != source.split or not _is_own(source, data_path):
        changes["held_out"] = 0.0
    if data_path is not None:
        folder = data_path.expanduser() / name
        changes["path"] = str(folder if folder.is_dir() else data_path)
        if not data_path.expanduser().is_dir():
            known = {"test", source.split} if _is_own(source, data_path) else {"test"}
            if split not in known:
                raise DataError(
                    f"--split {split}: {data_path} is no folder, so it has no splits and is asked whole; leave --split "
                    f"out, or name a folder with a file a split ({split}.jsonl)"
                )
            changes["split"] = DEFAULT_SPLIT
        return changes
    if name == "local" and source.path is None:
        raise DataError("benchmark local: name the file, or the folder with a file a split: gtpo eval --data-path PATH")
    if name == "hub" and source.path is None and source.dataset is None:
        raise DataError(
            "benchmark hub: name the data set: gtpo eval --set data.benchmark=hub --set data.dataset=owner/name, or a "
            "copy of it with --data-path"
        )
    if source.path is not None and split != source.split and not Path(source.path).expanduser().is_dir():
        raise DataError(
            f"data.path: {source.path} is the one file that was trained on, so it holds nothing to test on; name "
            "another with gtpo eval --data-path, or train with data.held_out: 0.1, or give data.path a folder with a "
            "file a split (train.jsonl, test.jsonl)"
        )
    return changes
