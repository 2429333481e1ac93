"""Tables on the terminal without broken words."""

from __future__ import annotations

from collections.abc import Container, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gtpo_cli.terminal.console import print_line

_GAP = 2  # blanks between columns


def print_table(
    console: Console,
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
