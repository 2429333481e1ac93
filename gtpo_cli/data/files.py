"""Find the files of `data.path`: one file, a split's file or shards in a folder, or all matches of a pattern."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from gtpo_cli.data.local import READERS, Table, explained, nearest, open_table
from gtpo_cli.errors import DataError
from gtpo_cli.text import some

# A shard of a split as the hub and `datasets` name it: train-00000-of-00002, in older sets with a hash at the end.
_SHARD = re.compile(r"(?P<split>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?:-[0-9a-f]+)?")


def find_files(path: Path, split: str) -> tuple[str, tuple[Path, ...]]:
    """Return the name of the split or file, and the files to read for `data.path` in order.

    A file means itself, but one shard means all shards of its split. A folder holds `<split>.<suffix>` or the split's
    shards. A pattern (`data/*.jsonl`) means every matching file. `split` only matters for a folder. Raises DataError
    that names the files found. A missing shard is an error too.
    """
    with explained(path):  # for example a name that is too long, or a folder without permission
        if path.is_file():
            if (shard := _SHARD.fullmatch(path.stem)) is None:
                return path.stem, (path,)
            siblings = [file for file in _readable(path.parent) if file.suffix == path.suffix]
            return shard["split"], _all_shards([file for file in siblings if _split_of(file) == shard["split"]])
        if path.is_dir():
            return split, _files_of_split(path, split)
        if glob.has_magic(str(path)):
            if files := sorted(file for file in _matches(path) if file.is_file()):
                return path.stem, tuple(files)
            raise DataError(f"{path}: no file matches this pattern (data.path is relative to {Path.cwd()})")
    raise DataError(f"{path}: no such file or folder (data.path is relative to {Path.cwd()})")


def _matches(pattern: Path) -> Iterator[Path]:
    """Yield what matches a pattern. As in a shell, `**` follows no link to a folder, and hidden names match only a dot.

    Links can lead in circles, so that a pattern through them would not end.
    """
    parts = pattern.parts
    start = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    # pathlib refuses ** within a name, where it means *
    names = [part if part == "**" else re.sub(r"\*+", "*", part) for part in parts[start:]]
    names += ["*"] if names[-1] == "**" else []
    below = Path(*parts[:start])
    for path in below.glob("/".join(names)):
        hidden = [part for part in path.relative_to(below).parts if part.startswith(".")]
        if not hidden or any(name.startswith(".") for name in names):
            yield path


def open_files(where: str, files: Sequence[Path]) -> Table:
    """Return the rows of all files as one table. Raises DataError like `open_table`, and if columns differ."""
    if len(files) == 1:
        return open_table(files[0])
    tables = [open_table(file) for file in files]
    for table in tables[1:]:
        if table.columns != tables[0].columns:
            raise DataError(
                f"{table.where}: has other columns than {tables[0].where} ({_listed(table)}; {_listed(tables[0])}); "
                "name files with the same columns"
            )
    return Table(
        where,
        tables[0].columns,
        chain.from_iterable(table.rows for table in tables),
        lambda names: chain.from_iterable(table.rows_with(names) for table in tables),
    )


def _files_of_split(folder: Path, split: str) -> tuple[Path, ...]:
    readable = _readable(folder)
    if not readable:
        raise DataError(f"{folder}: contains no data file; expected {split}.jsonl, {split}.parquet or {split}.csv")
    whole = [file for file in readable if file.stem == split]
    shards = [file for file in readable if file.stem != split and _split_of(file) == split]
    if not whole and not shards:
        names = some([file.name for file in readable])
        hint = nearest(split, [_split_of(file) for file in readable])
        raise DataError(f"{folder}: no file for split {split} (data.split); found {names}{hint}")
    if len(whole) + len({file.suffix for file in shards}) > 1:
        names = some([file.name for file in (*whole, *shards)])
        raise DataError(
            f"{folder}: {names} are {'both' if len(whole) + len(shards) == 2 else 'all'} split {split}; set data.path "
            "to one of them"
        )
    return tuple(whole) if whole else _all_shards(shards)


def _all_shards(shards: Sequence[Path]) -> tuple[Path, ...]:
    """Return all shards in order. Raises DataError if one is missing, or if they belong to different sets."""
    found = [match for file in shards if (match := _SHARD.fullmatch(file.stem))]
    counts = {int(match["count"]) for match in found}
    numbers = sorted(int(match["number"]) for match in found)
    expected = list(range(max(counts)))
    if len(counts) > 1 or numbers != expected:
        missing = [f"{number:05d}" for number in sorted({*expected} - {*numbers})]
        why = "shards of different sets"
        if len(counts) == 1 and missing:
            why = f"shard {missing[0]} is missing" if len(missing) == 1 else f"shards {some(missing)} are missing"
        raise DataError(
            f"{shards[0].parent}: split {found[0]['split']} has {len(shards)} of {max(counts)} files ({why}); add all "
            "files of one set, or choose files by a pattern, such as train-00000-*.parquet"
        )
    return tuple(shards)


def _readable(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file() and file.suffix.lower() in READERS)


def _split_of(file: Path) -> str:
    shard = _SHARD.fullmatch(file.stem)
    return shard["split"] if shard else file.stem


def _listed(table: Table) -> str:
    return ", ".join((table.columns or ())[:20]) or "no columns"
