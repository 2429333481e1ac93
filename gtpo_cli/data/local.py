"""Find the files of `data.path`, and stream their rows, each with its file and line.

`data.path` is one file, a folder with a split's file or shards, one that `datasets.save_to_disk` wrote, or a pattern.
Files are JSON Lines, CSV, Parquet or Arrow.

A row that cannot be read is not an error. It is returned as the reason, so that one broken line does not cost the other
million. A file that cannot be opened is a `DataError`.
"""

from __future__ import annotations

import csv
import glob
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, AnyStr, NamedTuple, TextIO

from gtpo_cli.errors import DataError, translated
from gtpo_cli.text import nearest_of, one_line, shown, some

Row = Mapping[str, Any]

# Longer lines are useless for training. They are skipped in pieces and never held in memory.
MAX_LINE_BYTES = 16 * 1024 * 1024
_TOO_LONG = f"line too long: more than {MAX_LINE_BYTES // 2**20} MiB"
PARQUET_BATCH_ROWS = 256

# First bytes of files that are often misnamed.
SIGNATURES = {
    b"PAR1": "a Parquet file; name it .parquet",
    b"\x1f\x8b": "compressed (gzip); unpack it",
    b"\x28\xb5\x2f\xfd": "compressed (zstd); unpack it",
    b"PK\x03\x04": "a zip archive or a spreadsheet; unpack it, or save it as CSV",
    b"\xff\xfe": "UTF-16 or UTF-32 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"\0\0\xfe\xff": "UTF-32 text; save it as UTF-8",
}


# A row's source, as in `DroppedRow.source`, and its values or the reason why it has none, as in `DroppedRow.reason`.
SourcedRow = tuple[str, Row | str]


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one file or one hub split. `columns` is None if each row names its own (JSON Lines). `select` gives
    rows with some of the columns, where that saves reading the others. `classes`: the names of the classes of columns
    that hold their numbers."""

    where: str
    columns: tuple[str, ...] | None
    rows: Iterable[SourcedRow]
    select: Callable[[Sequence[str]], Iterable[SourcedRow]] | None = None
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def rows_with(self, names: Iterable[str]) -> Iterable[SourcedRow]:
        """Return the rows with at least these columns (`a.b` is in `a`), of which some may not be there."""
        if self.select is None or self.columns is None:
            return self.rows
        wanted = {name if name in self.columns else name.partition(".")[0] for name in names}
        return self.select([name for name in self.columns if name in wanted])


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return '; did you mean X?' for the choice most similar to `name`, or "" if none is similar."""
    near = nearest_of(name, choices, cutoff=0.6)
    return f"; did you mean {near}?" if near else ""


def open_table(path: Path) -> Table:
    """Open a file by its suffix. .jsonl, .jsonlines and .ndjson have an object per line; .json may also be a list; .csv
    is separated by commas, semicolons, tabs or bars, like its header; .tsv, .parquet and .arrow are read too.

    Only a header is read here; rows are read on demand. Raises DataError, here or while rows are read, for a file that
    cannot be opened or is not of its kind.
    """
    reader = READERS.get(path.suffix.lower())
    with explained(path), path.open("rb") as file:
        start = file.read(4)
    if not start:
        raise DataError(f"{path}: is empty")
    what = next((what for signature, what in SIGNATURES.items() if start.startswith(signature)), None)
    if what is not None and reader is not _parquet_table:
        raise DataError(f"{path}: is {what}")
    if reader is None:
        raise DataError(f"{path}: cannot read {path.suffix or 'a file without suffix'}; use {', '.join(READERS)}")
    return reader(path)


def explained(path: Path) -> AbstractContextManager[None]:
    """Turn an OSError into a DataError that names the path."""
    return translated(
        OSError, lambda error: DataError(f"{path}: cannot be read ({one_line(error.strerror or str(error))})")
    )


def _json_lines_table(path: Path) -> Table:
    return Table(str(path), None, _json_lines_rows(path))


def _json_lines_rows(path: Path) -> Iterator[SourcedRow]:
    with explained(path), path.open("rb") as file:
        for number, line in enumerate(_lines(file), start=1):
            if line is None:
                yield f"{path}:{number}", _TOO_LONG
            elif line.strip():
                yield f"{path}:{number}", _json_row(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)


def _json_table(path: Path) -> Table:
    """Open JSON Lines, or one list of objects."""
    with explained(path), path.open("rb") as file:
        start = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
        if not start.startswith(b"["):
            return _json_lines_table(path)
        file.seek(0)
        rows = _json_value(file.read().removeprefix(b"\xef\xbb\xbf"))
    if isinstance(rows, _NotJson):
        raise DataError(f"{path}: {rows.why}")
    return Table(str(path), None, ((f"{path}:{number}", _object(row)) for number, row in enumerate(rows, start=1)))


def _lines(file: IO[AnyStr]) -> Iterator[AnyStr | None]:
    """Yield the lines of a file; None for one longer than MAX_LINE_BYTES (in a text file, characters)."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) <= MAX_LINE_BYTES:
            yield line
            continue
        while line and line[-1:] not in (b"\n", "\n", "\r"):
            line = file.readline(MAX_LINE_BYTES)
        yield None


class _NotJson(NamedTuple):
    why: str


def _json_row(line: bytes) -> Row | str:
    value = _json_value(line)
    return value.why if isinstance(value, _NotJson) else _object(value)


def _json_value(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _NotJson(f"not UTF-8: {error.reason} at byte {error.start} of the line")
    except json.JSONDecodeError as error:
        if b"\0" in content:
            return _NotJson("not JSON: NUL bytes; is the file UTF-8 text?")
        if content.strip() in (b"[", b"{"):
            return _NotJson("not JSON: one document over several lines; write one object per line")
        return _NotJson(f"not JSON: {one_line(str(error))}")
    except RecursionError:
        return _NotJson("not JSON: nested too deep")
    except ValueError:  # Python's limit on the digits of an integer
        return _NotJson(f"not JSON: a number of more than {sys.get_int_max_str_digits()} digits; quote it")


def is_message(value: Any) -> bool:
    """Whether it is a message of a chat."""
    return isinstance(value, Mapping) and ("role" in value or "from" in value)


def _object(value: Any) -> Row | str:
    """Return a row. The columns of a list of messages are called 0, 1, ..., as `datasets` calls them."""
    if isinstance(value, list) and value and all(map(is_message, value)):
        return {str(number): message for number, message in enumerate(value)}
    return value if isinstance(value, dict) else f"no JSON object: a {type(value).__name__}; write one object per line"


def _csv_table(path: Path, *, separators: str = ",;\t|") -> Table:
    """Open a CSV file. Its separator is the one that splits the header into most columns; the first in a tie."""
    with explained(path), _open_csv(path) as file:
        first = file.readline(MAX_LINE_BYTES).strip()
    if re.fullmatch(r"sep=.|#[^,;|\t]*", first):
        raise DataError(f"{path}:1: {shown(first)} is no header; remove the lines before the names of the columns")
    headers = {separator: _csv_header(path, separator) for separator in separators}
    found = {separator: header for separator, header in headers.items() if not isinstance(header, str)}
    if not found:
        raise DataError(f"{path}:1: the header is not CSV ({headers[separators[0]]})")
    separator = max(found, key=lambda mark: len(found[mark]))
    columns = tuple(name.strip() for name in found[separator])
    return Table(str(path), columns, _csv_rows(path, columns, separator))


def _csv_header(path: Path, separator: str) -> list[str] | str:
    """Return the columns, or the reason why it is not CSV."""
    with explained(path), _open_csv(path) as file:
        lines = _CsvLines(file)
        try:
            header = next(csv.reader(lines, delimiter=separator, strict=True), [])
        except csv.Error as error:
            return str(error)
    return f"more than {MAX_LINE_BYTES // 2**20} MiB" if lines.skipped else header


def _csv_rows(path: Path, columns: tuple[str, ...], separator: str) -> Iterator[SourcedRow]:
    with explained(path), _open_csv(path) as file:
        lines = _CsvLines(file)
        reader = csv.reader(lines, delimiter=separator, strict=True)
        next(reader)
        while True:
            source = f"{path}:{reader.line_num + 1}"  # the first line of the row: quoted fields can span lines
            skipped = lines.skipped
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield source, f"not CSV: {error}"
                continue
            if lines.skipped > skipped:
                yield source, _TOO_LONG
            elif fields and len(fields) != len(columns):
                yield source, f"wrong number of fields: {len(fields)}, the header has {len(columns)}"
            elif fields:
                yield source, dict(zip(columns, fields, strict=True))


class _CsvLines:
    """Lines of a text file. A line that is too long is replaced by a blank one and counted in `skipped`."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.skipped = 0

    def __iter__(self) -> Iterator[str]:
        for line in _lines(self._file):
            self.skipped += line is None
            yield "\n" if line is None else line


def _open_csv(path: Path) -> Any:
    csv.field_size_limit(MAX_LINE_BYTES)  # the default is 128 KiB
    # Invalid UTF-8 becomes lone surrogates, which the check of each text finds. So one row is lost, not the file.
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def _parquet_table(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with explained(path):
        try:
            file = pq.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path}: is not a Parquet file, or is damaged ({one_line(str(error))}); download it again"
            ) from error
    names = tuple(file.schema_arrow.names)

    def rows(columns: Sequence[str] | None = None) -> Iterator[SourcedRow]:
        return _rows_of_batches(path, file, file.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=columns))

    return Table(str(path), names, rows(), rows, _class_names(file.schema_arrow))


def _arrow_table(path: Path) -> Table:
    """Open an Arrow file: a stream, as `datasets` writes it, or a file with an index (Feather)."""
    import pyarrow as pa

    with explained(path):
        file = pa.memory_map(str(path))
        try:
            is_stream = file.read(6) != b"ARROW1"
            file.seek(0)
            reader = pa.ipc.open_stream(file) if is_stream else pa.ipc.open_file(file)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: is not an Arrow file, or is damaged ({one_line(str(error))})") from error
    batches = reader if is_stream else map(reader.get_batch, range(reader.num_record_batches))
    rows = _rows_of_batches(path, file, batches)
    return Table(str(path), tuple(reader.schema.names), rows, None, _class_names(reader.schema))


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Return the names of the classes of each column that `datasets` stores as their numbers."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        labels = {name: kind for name, kind in features.items() if isinstance(kind, dict)}
        return {name: kind["names"] for name, kind in labels.items() if kind.get("_type") == "ClassLabel"}
    except (ValueError, LookupError, TypeError, AttributeError):  # of another tool
        return {}


def with_class_names(row: Row, names: Mapping[str, Sequence[str]]) -> Row:
    """Return a row in which columns of classes have their names; None without one (-1 in the hub's test splits)."""
    numbers = {column: row[column] for column in names if isinstance(row.get(column), int)}
    named = {key: dict(enumerate(names[key])).get(number) for key, number in numbers.items()}
    return {**row, **named} if named else row


def _rows_of_batches(path: Path, file: AbstractContextManager[Any], batches: Iterable[Any]) -> Iterator[SourcedRow]:
    import pyarrow as pa

    number = 0
    with explained(path), file:
        try:
            for batch in batches:
                for index in range(batch.num_rows):
                    number += 1
                    yield f"{path}:{number}", _row_of_batch(batch, index)
        except (pa.ArrowException, OSError) as error:
            reason = one_line(str(error))
            raise DataError(f"{path}: is damaged after row {number} ({reason}); download it again") from error


def _row_of_batch(batch: Any, index: int) -> Row | str:
    try:
        return {name: _cell(column[index]) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start} of a text"


@dataclass(frozen=True, slots=True, repr=False)
class OutOfRange:
    """A placeholder for a value that Python cannot hold, such as a date after the year 9999."""

    why: str

    def __repr__(self) -> str:
        return f"({self.why})"


def _cell(scalar: Any) -> Any:
    try:
        value = scalar.as_py()
        if str(scalar.type) in ("float", "halffloat") and value is not None:
            return float(str(scalar.type.to_pandas_dtype()(value)))  # 0.1 in 32 bits, not 0.10000000149
        return value
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError) as error:
        return OutOfRange(one_line(str(error)))


READERS: Mapping[str, Callable[[Path], Table]] = {
    ".jsonl": _json_lines_table,
    ".jsonlines": _json_lines_table,
    ".ndjson": _json_lines_table,
    ".json": _json_table,
    ".csv": _csv_table,
    ".tsv": partial(_csv_table, separators="\t"),
    ".parquet": _parquet_table,
    ".arrow": _arrow_table,
}


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
            shard = _SHARD.fullmatch(path.stem)
            if shard is None or path.suffix.lower() not in READERS:
                return path.stem, (path,)
            siblings = [file for file in _readable(path.parent) if file.suffix == path.suffix]
            return shard["split"], _all_shards([file for file in siblings if _split_of(file) == shard["split"]])
        if path.is_dir():
            if files := _saved_files(path):
                return path.name, files
            return split, _saved_files(path / split) or _files_of_split(path, split)
        if glob.has_magic(str(path)):
            if matching := sorted(file for file in _matches(path) if file.is_file()):
                return path.stem, tuple(matching)
            raise DataError(f"{path}: no file matches this pattern (data.path is relative to {Path.cwd()})")
    if re.match(r"[a-z0-9]+:/", str(path)):
        raise DataError(f"{path}: data.path takes no address; download it, or name a data set of the hub: data.dataset")
    raise DataError(f"{path}: no such file or folder (data.path is relative to {Path.cwd()})")


def _saved_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder that `datasets.save_to_disk` wrote, in order; none for any other folder."""
    try:
        listed = json.loads((folder / "state.json").read_bytes())["_data_files"]
        return tuple(folder / Path(file["filename"]).name for file in listed)
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return ()


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
        tables[0].classes,
    )


def _files_of_split(folder: Path, split: str) -> tuple[Path, ...]:
    readable = _readable(folder)
    if saved := sorted(state.parent.name for state in folder.glob("*/state.json")):
        raise DataError(f"{folder}: no split {split} (data.split); found {some(saved)}{nearest(split, saved)}")
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
