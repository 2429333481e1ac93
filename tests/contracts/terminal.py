"""A command on a terminal of its own, with a user's eyes and keyboard: a pseudo-terminal, and what its screen shows."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pyte
from commands import GTPO, environment

SCROLLED = 10_000  # lines above the screen that are kept, far more than any command writes


class Terminal:
    """`gtpo` with these arguments on a terminal of so many columns and lines.

    `raw`: every character that was written so far; `shown()`: what stands on the screen, and above it.
    """

    def __init__(
        self, folder: Path, arguments: list[str], *, columns: int = 80, lines: int = 24, kind: str = "xterm-256color"
    ) -> None:
        size = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self._size = columns, lines
        self._written = io.StringIO()
        self._command: Any = pexpect.spawn(
            GTPO[0], arguments, cwd=str(folder), env=size | {"TERM": kind}, dimensions=(lines, columns),
            encoding="utf-8", timeout=180, preexec_fn=_listen,
        )  # fmt: skip
        self._command.logfile_read = self._written

    @property
    def raw(self) -> str:
        return self._written.getvalue()

    def wait_for(self, pattern: str) -> None:
        """Read until what was written since the last match matches."""
        self._command.expect(pattern)

    def type(self, keys: str) -> None:
        self._command.send(keys)

    def finish(self) -> int:
        """Read to the end; the exit code, or minus the signal."""
        self._command.expect(pexpect.EOF)
        self._command.close()
        return int(self._command.exitstatus if self._command.signalstatus is None else -self._command.signalstatus)

    def kill(self) -> None:
        self._command.close(force=True)

    def screen(self) -> pyte.HistoryScreen:
        """The screen after all that was written, with what has scrolled off it."""
        screen = pyte.HistoryScreen(*self._size, history=SCROLLED)
        pyte.Stream(screen).feed(self.raw)
        return screen

    def shown(self) -> list[str]:
        """The lines that a user can read, from the first to the last, without spaces at their ends."""
        screen = self.screen()
        above = ["".join(line[column].data for column in range(screen.columns)) for line in screen.history.top]
        lines = [line.rstrip() for line in (*above, *screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines


OnTerminal = Callable[..., Terminal]  # (*arguments, **settings): started in the folder of the test


def _listen() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run in the background of a shell has it ignored
