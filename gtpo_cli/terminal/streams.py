"""Standard streams that survive closing, a reader that ends, a full disk and a lost terminal."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from gtpo_cli.text import folded, printable


class _Stream(io.FileIO):
    """A file descriptor. If its output is optional, a failed write prints one warning and later writes are dropped."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.optional = False  # nothing depends on its output
        self.silent = False
        self._broken = False

    def write(self, data: Any) -> int:
        if self._broken and self.optional:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            if not self.optional:
                raise
            self._broken = True
            if not self.silent:
                print(f"warning: cannot write to standard output ({error.strerror}); going on", file=sys.stderr)
            return len(data)


_output: _Stream | None = None
_for_json: TextIO | None = None


def open_streams() -> None:
    """Make standard streams safe to use.

    A closed stream stays closed: reading ends, and writing is refused. But no file can get its number, so that prints
    cannot land in a file."""
    global _output
    for descriptor, how in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, how)  # the lowest number that is free
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    if sys.stderr is sys.__stderr__:
        errors = _Stream(2)
        errors.optional = errors.silent = True  # there is no other place for a warning
        sys.stderr = _text(errors, sys.stderr, errors="backslashreplace")
    if sys.stdout is sys.__stdout__:
        _output = _Stream(1)
        sys.stdout = _text(_output, sys.stdout, errors="strict")


_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_LINES_UP = re.compile(r"(\x1b\[A)+")


class CleanStream:
    """Standard output or error without control characters, so that no text can steer the terminal.

    rich writes colours directly to `rich_proxied_file` (`gtpo_cli.terminal.console`). Colours of other libraries are
    removed. Their progress bars work, even several below each other: a text may begin with a carriage return, and on
    standard error (`bars`) a write may consist of moving the cursor up. On a terminal, long lines are folded between
    words, except by `print_whole`.
    """

    def __init__(self, stream: TextIO, *, bars: bool = False) -> None:
        self.rich_proxied_file = stream
        self._bars = bars
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character

    def write(self, text: str) -> int:
        if self._bars and _LINES_UP.fullmatch(text):
            clean = text
        else:
            start = "\r" if text.startswith("\r") else ""
            clean = start + printable(_COLOUR.sub("", text[len(start) :]))
            if not start and self.isatty():
                clean = folded(clean, shutil.get_terminal_size().columns)
        self.rich_proxied_file.write(clean)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def print_whole(text: str) -> None:
    """Print text for copying, such as a command or a file, without folding its lines."""
    print(printable(text), file=getattr(sys.stdout, "rich_proxied_file", sys.stdout))


def print_words(text: str, column: int) -> int:
    """Print words at a column of a line, and return the new column. On a terminal, a word that does not fit goes to
    the next line."""
    from rich.cells import cell_len

    if sys.stdout.isatty():
        text = folded(text, shutil.get_terminal_size().columns, column)
    print(text, end="", flush=True)
    _, ended, last = text.rpartition("\n")
    return cell_len(last) + (0 if ended else column)


def clean_streams() -> None:
    """Prevent printed text from steering the terminal. A closed stream stays closed."""
    if sys.stdout is not None:
        sys.stdout = CleanStream(sys.stdout)
    if sys.stderr is not None:
        sys.stderr = CleanStream(sys.stderr, bars=True)


def output_is_extra() -> None:
    """Let the command go on if printing fails, because its results are in files."""
    if _output is not None:
        _output.optional = True


def keep_output_for_json() -> None:
    """Send all later standard output, from any library, to standard error, except that of `write_json`."""
    global _for_json
    sys.stdout.flush()
    if _output is None:  # not our stream, for example in a test
        _for_json, sys.stdout = sys.stdout, sys.stderr
    else:
        _for_json = _text(_Stream(os.dup(1)), None, errors="strict")
        os.dup2(2, 1)  # so that C libraries and processes started from here follow


def write_json(text: str) -> None:
    print(text, file=_for_json, flush=True)


def drop_output() -> None:
    """Ignore failed writes at the end of the program."""
    if _output is not None:
        _output.optional = _output.silent = True


def _text(stream: _Stream, like: TextIO | None, *, errors: str) -> TextIO:
    if like is None:
        return io.TextIOWrapper(io.BufferedWriter(stream), encoding="utf-8", errors=errors)
    at_once = isinstance(like, io.TextIOWrapper) and like.write_through  # python -u
    return io.TextIOWrapper(
        cast("io.BufferedWriter", stream) if at_once else io.BufferedWriter(stream),
        encoding=like.encoding, errors=like.errors, line_buffering=bool(like.line_buffering), write_through=at_once,
    )  # fmt: skip
