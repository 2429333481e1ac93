"""A command on a terminal of its own, with a user's eyes and keyboard: a pseudo-terminal, and what its screen shows."""

from __future__ import annotations

import io
import os
import signal
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import pexpect
import pyte
from commands import GTPO, environment
from pexpect.fdpexpect import fdspawn

SCROLLED = 10_000  # lines above the screen that are kept, far more than any command writes


class Terminal:
    """`gtpo` with these arguments on a terminal of so many columns and lines.

    `raw`: every character that was written so far; `shown()`: what stands on the screen, and above it.
    """

    def __init__(
        self, folder: Path, arguments: list[str], *, columns: int = 80, lines: int = 24, kind: str = "xterm-256color"
    ) -> None:
        self._size = columns, lines
        self._written = io.StringIO()
        ours, its = os.openpty()
        termios.tcsetwinsize(its, (lines, columns))
        more = {"COLUMNS": None, "LINES": None, "NO_COLOR": None, "TERM": kind}
        device = os.ttyname(its)
        self._command = forks.Command([*GTPO, *arguments], cwd=folder, env=environment(), more=more, terminal=device)
        while str(Path(f"/proc/{self._command.pid}/fd/2").readlink()) != device:  # it opens the error stream last
            time.sleep(0.01)
        os.close(its)
        self._reader: Any = fdspawn(ours, encoding="utf-8", timeout=180)
        self._reader.logfile_read = self._written

    @property
    def raw(self) -> str:
        return self._written.getvalue()

    def wait_for(self, pattern: str) -> None:
        """Read until what was written since the last match matches."""
        self._reader.expect(pattern)

    def type(self, keys: str) -> None:
        self._reader.send(keys)

    def finish(self) -> int:
        """Read to the end; the exit code, or minus the signal."""
        self._reader.expect(pexpect.EOF)
        return self._ended()

    def kill(self) -> None:
        """Where it has not ended."""
        if not self._reader.closed:
            os.kill(self._command.pid, signal.SIGKILL)
            self._ended()

    def _ended(self) -> int:
        self._reader.close()
        return self._command.wait().returncode

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
