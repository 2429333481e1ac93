"""Reading untrusted files (run folders, checkpoints, model configurations) and writing files of a run folder.

Only regular files are read, since a FIFO may block and a device may never end. Their size is bounded (for JSON lines,
the size of each line), and pydantic checks every value strictly against the expected type. Anything else raises the
caller's error with the reason, so no caller sees a partly read file.

A run folder must not contain links, so that everything written there stays there. `refuse_links` checks a folder
before it is used; `append_to` and `write_aside` never write through a link.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from io import BufferedReader, FileIO
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, TypeAdapter, ValidationError

from gtpo_cli.errors import PASSING, CheckpointError, GtpoError, system_words, translated
from gtpo_cli.text import describe, one_line

T = TypeVar("T")
Wrong = Callable[[str], GtpoError]  # what is wrong with the file -> the error that says where, what and the remedy

MAX_BYTES = 2**26  # of a file that is read at once, or of a line; parsed, it may take fifty times as much
_STEP = re.compile(r"step-([0-9]{6,12})")

# Bounds for numbers from a run, so that their squares and sums are finite too.
Finite = Annotated[float, Field(ge=-1e150, le=1e150, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file (or a link to one) for reading bytes. Raises OSError at once for anything else."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), str(file)) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    raise OSError(errno.EINVAL, "is no regular file", str(file))


def read_bytes(file: Path) -> bytes:
    """Read a regular file. Raises OSError, also for more than MAX_BYTES."""
    with open_regular(file) as stream:
        size = os.fstat(stream.fileno()).st_size  # allocate no more than the file has
        return _up_to_bound(file, stream.read(min(size, MAX_BYTES) + 1), MAX_BYTES)


def _up_to_bound(file: Path, content: bytes, most: int, words: str = "is larger than") -> bytes:
    if len(content) > most:
        raise OSError(errno.EFBIG, f"{words} {most // 2**20} MiB", str(file))
    return content


def read_json(file: Path, shape: type[T], wrong: Wrong) -> T:
    """Read the JSON document in a file strictly as a `shape`. Raises `wrong(reason)`."""
    with guarded(wrong):
        return parse_json(read_bytes(file), shape)


def read_json_lines(
    file: Path, shape: type[T], wrong: Callable[[int, str], GtpoError], *, cut: bool = False
) -> Iterator[T]:
    """Read a `shape` from each line of a file. Raises `wrong(line, reason)`: lines count from 1, the file itself is 0.

    `cut`: the file may end within a line, as a kill leaves it; that line is skipped.
    """
    with guarded(lambda reason: wrong(0, reason)):
        stream = open_regular(file)
    with stream:
        for number in count(1):
            with guarded(lambda reason, number=number: wrong(number, reason)):  # type: ignore[misc]
                line = read_line(stream, file)
                if not line or (cut and not line.endswith(b"\n")):
                    return
                row = parse_json(line, shape)
            yield row


def read_line(stream: BufferedReader, file: Path, *, most: int | None = None) -> bytes:
    """Read a line; b"" at the end. Raises OSError for more than `most` bytes (default: MAX_BYTES)."""
    most = most or MAX_BYTES
    return _up_to_bound(file, stream.readline(most + 1), most, "has a line of more than")


def parse_json(content: bytes | str, shape: type[T]) -> T:
    """Parse JSON as a `shape`. Raises pydantic's ValueError for another type, too deep nesting, or bad UTF-8."""
    value: T = _adapter(cast("Hashable", shape)).validate_json(content, strict=True)
    return value


@cache
def _adapter(shape: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("Any", shape))


def guarded(wrong: Wrong) -> AbstractContextManager[None]:
    """Turn every exception of a block that reads untrusted data into `wrong(reason)`, in one line.

    gtpo's own errors, signals and running out of memory pass, since the data are not to blame. It catches
    BaseException, since native libraries panic with it.
    """
    return translated(BaseException, lambda error: wrong(reason(error)), passing=(*PASSING, MemoryError))


def writing(wrong: Wrong) -> AbstractContextManager[None]:
    """Turn an OSError of a block that writes into `wrong(reason)`."""
    return translated(OSError, lambda error: wrong(reason(error)))


def writing_run(folder: Path, wrong: Callable[[str, str], GtpoError]) -> AbstractContextManager[None]:
    """Turn an OSError of a block that writes in a run's folder into `wrong(reason, remedy)`."""
    return translated(OSError, lambda error: wrong(reason(error), remedy(error, folder)))


def making_run(folder: Path) -> AbstractContextManager[None]:
    """Turn an OSError of a block that creates a run's folder or its small files into a CheckpointError."""
    return translated(
        OSError,
        lambda error: CheckpointError(f"{folder}: cannot write the run folder ({system_words(error)}); see output_dir"),
    )


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)  # None: writers of torch and safetensors give no number
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, None)


def remedy(error: BaseException, folder: Path) -> str:
    """Return the remedy for a failed write in a run's folder."""
    number = getattr(error, "errno", None)
    if number in _GONE and not folder.is_dir():
        return "its folder was moved or deleted, or the working folder changed (os.chdir in a plug-in): put it back"
    return "make room" if number in _FULL else "make the folder writable" if number in _CLOSED else "fix that"


def reason(error: BaseException) -> str:
    """Return the message of an exception in one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(one_line(str(part), most=40) for part in first["loc"])
        return one_line(f"{place}: {first['msg']}" if place else first["msg"])
    if isinstance(error, OSError) and error.strerror:
        return one_line(system_words(error))
    return describe(error)


def step_of(name: str) -> int | None:
    """Parse the name of a step's folder or file: 600 for "step-000600", None for any other name."""
    found = _STEP.fullmatch(name)
    step = int(found[1]) if found else None
    return step if step is not None and name == f"step-{step:06d}" else None


def own_folder(folder: Path) -> Path:
    """Create a folder to write into. Raises OSError if it is a link, which would lead writes elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "is a link to another folder", str(folder))
    return folder


def refuse_links(folder: Path, *, but: re.Pattern[str]) -> None:
    """Raise OSError with the name if a file or folder in `folder` is a link.

    `but`: relative paths that are exempt, since another program replaces these links.
    """
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if not entry.is_symlink():
                    waiting += [Path(entry.path)] if entry.is_dir() else []
                elif not but.fullmatch(Path(entry.path).relative_to(folder).as_posix()):
                    raise OSError(errno.ELOOP, "is a link", entry.path)


def append_to(file: Path) -> FileIO:
    """Open a file of a run folder, or create it, to append unbuffered.

    Raises OSError for links, hard links and other files that are not regular, since writes would land elsewhere too.
    """
    how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(file, how, 0o666)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return FileIO(descriptor, "ab")
    os.close(descriptor)
    linked = stat.S_ISREG(status.st_mode)
    what = f"{file.name} has a second name, a hard link; copy it with cp -r" if linked else "is no regular file"
    raise OSError(errno.EINVAL, what, str(file))


def write_aside(file: Path, content: str | bytes) -> None:
    """Write to a temporary file, flush to disk, and rename, so that readers see the old file or the new one.

    Links at either path are replaced, not followed. Raises OSError that names `file`, and leaves nothing behind.
    """
    aside = file.with_name(f".{file.name}.tmp")
    try:
        aside.unlink(missing_ok=True)
        with aside.open("xb") as stream:
            stream.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(file)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(file), None  # the path that the caller gave
        raise


@contextmanager
def folder_aside(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a new empty folder that is flushed to disk and renamed to `folder` at the end of the block.

    After an error nothing of it stays. `replace`: delete an existing `folder` once the new one is complete.
    """
    aside, before = (folder.with_name(f".{folder.name}.{word}") for word in ("tmp", "old"))
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        yield aside
        flush_to_disk(aside)
        if replace:
            shutil.rmtree(before, ignore_errors=True)
            if folder.is_dir():
                folder.rename(before)
        aside.rename(folder)
        if replace:
            shutil.rmtree(before, ignore_errors=True)
        flush_to_disk(folder.parent, recursive=False)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if replace and before.is_dir() and not folder.exists():
            before.rename(folder)


def flush_to_disk(folder: Path, *, recursive: bool = True) -> None:
    """Flush the folder, and with `recursive` everything below it, to disk. Raises OSError."""
    for path in [folder, *(folder.rglob("*") if recursive else ())]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def locked(file: Path, *, held: GtpoError) -> Iterator[None]:
    """Hold a lock on a file, creating it and its folder. The system frees the lock when the process ends.

    Raises `held` if another process has the lock, CheckpointError if the folder cannot be written.
    """
    with making_run(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = append_to(file)
    with opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise held from None
        except OSError as error:
            raise CheckpointError(
                f"{file}: the file system cannot lock files ({error.strerror}), so two processes could write the same "
                "folder; choose an output_dir on another file system"
            ) from error
        yield
