"""Printing with rich: a console whose text cannot control the terminal, lines, and tables without broken words."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Sequence
from typing import IO, Any

import rich.console
from rich import box
from rich.cells import cell_len
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from gtpo_cli.text import folded, printable

ANY_WIDTH = 100_000  # width of output that is not a terminal
WARNING = "bold magenta"
# Colours that are readable on light and dark backgrounds, so not yellow or cyan, which rich would use.
THEME = Theme(
    {
        "bar.complete": "magenta", "bar.finished": "green", "bar.pulse": "magenta", "bar.back": "grey50",
        "progress.percentage": "none", "progress.download": "none", "progress.elapsed": "none",
        "progress.remaining": "none",
    }
)  # fmt: skip


class Console(rich.console.Console):
    """rich's console, but text cannot control the terminal; only rich's own control segments do.

    Text is shown unchanged: brackets and colons are not markup, and numbers get no colour.
    """

    def __init__(self, **options: Any) -> None:
        # `!gtpo ...` in a notebook has a terminal, of which the page shows colours and carriage returns, nothing else;
        # of its 16 colours, white on blue can hardly be read, so it gets colours as numbers
        in_notebook = "JPY_PARENT_PID" in os.environ
        environ = {**os.environ, "COLORTERM": "truecolor"} if in_notebook else os.environ
        plain: dict[str, Any] = {
            "markup": False,
            "emoji": False,
            "highlight": False,
            "theme": THEME,
            "_environ": environ,
        }
        super().__init__(force_interactive=False if in_notebook else None, **plain | options)
        self.is_page = in_notebook and self.is_terminal
        if not (self.is_terminal or self.is_jupyter or "width" in options):
            self.width = ANY_WIDTH  # do not wrap lines

    @property
    def file(self) -> IO[str]:
        """The stream itself. A live display puts a proxy around sys.stdout, which may be a proxy already
        (gtpo_cli.terminal.streams.CleanStream); rich looks through one of them."""
        file = super().file
        while (below := getattr(file, "rich_proxied_file", None)) is not None:
            file = below
        return file

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def print_line(console: rich.console.Console, text: str, style: str = "", *, whole: bool = False) -> None:
    """Print `text` as one line, wrapped between words on a terminal unless it is `whole`, so that it can be copied.

    Raises OSError if the terminal or the reader of the pipe is gone.
    """
    if console.is_terminal and not whole:
        text = folded(text, console.width)
    try:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
    except SystemExit as end:  # rich's reaction to a broken pipe, which must not stop training
        raise BrokenPipeError("standard output was closed") from end


_GAP = 2  # blanks between columns


def print_table(
    console: rich.console.Console,
    header: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    numbers: Container[int] = (),
    title: str | None = None,
) -> None:
    """Print a table; `numbers`: the columns to align right. A row that ends with * is bold.

    Cells wrap between words. If even the longest words do not fit, each row is printed as a list.
    """
    columns = [[str(cell) for cell in column] for column in zip(header, *rows, strict=True)]
    least = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in columns]
    room = console.width - _GAP * (len(header) - 1)
    if sum(least) <= room:
        table = Table(
            title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
            padding=(0, _GAP - 1, 0, 0),
        )  # fmt: skip
        widths = _widths([max(map(cell_len, column)) for column in columns], least, room)
        for column, (name, width) in enumerate(zip(header, widths, strict=True)):
            table.add_column(Text(name), justify="right" if column in numbers else "left", width=width)
        for row in rows:
            cells = (
                Text(cell) if isinstance(cell, str) else cell for cell in row
            )  # Text, so that brackets are not markup
            table.add_row(*cells, style="bold" if row[-1] == "*" else "")
        console.print(table)
        return
    if title:
        print_line(console, title)
    widest = max(map(len, header))
    for first, *others in rows:
        print_line(console, f"{header[0]} {first}".strip(), style="bold")
        for name, cell in zip(header[1:], others, strict=True):
            if name and str(cell).strip():
                print_line(console, f"  {name:<{widest}}  {cell}")


def _widths(widest: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return the width of each column, shrinking the widest ones until the table fits.

    rich would shrink only these, and break words while other columns could still wrap.
    """
    widths = list(widest)
    while sum(widths) > room:
        at = max(range(len(widths)), key=lambda column: (widths[column] > least[column], widths[column]))
        widths[at] -= 1
    return widths
