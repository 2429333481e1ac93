"""Many commands in one process, which spares the imports of gtpo's own modules. Each is `main`, as typed."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import NamedTuple

import forks
from commands import environment


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


def series(folder: Path, commands: list[list[str]]) -> list[Done]:
    done = forks.run([__file__], cwd=folder, input=json.dumps(commands).encode(), env=environment())
    assert done.returncode == 0, done.stderr
    return [Done(*json.loads(line)) for line in done.stdout.splitlines()]


def _main() -> None:
    from gtpo_cli.cli.app import main

    for arguments in json.load(sys.stdin):
        sys.argv = ["gtpo", *arguments]
        out, error, code = io.StringIO(), io.StringIO(), None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            try:
                main()
            except SystemExit as end:
                code = end.code
        print(json.dumps([code or 0, out.getvalue(), error.getvalue()]), file=sys.__stdout__)


if __name__ == "__main__":
    _main()
