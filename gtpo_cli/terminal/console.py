"""Printing with rich: a console whose text cannot control the terminal, and single lines on it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
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
