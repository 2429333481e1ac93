"""The command line: one file a command; parsing and printing only. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from gtpo_cli import __version__
from gtpo_cli.cli.compare import compare
from gtpo_cli.cli.doctor import doctor
from gtpo_cli.cli.evaluate import evaluate
from gtpo_cli.cli.export import export
from gtpo_cli.cli.generate import generate
from gtpo_cli.cli.inspect import inspect
from gtpo_cli.cli.plan import plan
from gtpo_cli.cli.probe_entropy import probe_entropy
from gtpo_cli.cli.recipes import app as recipes_app
from gtpo_cli.cli.report import report
from gtpo_cli.cli.sweep import sweep
from gtpo_cli.cli.train import train
from gtpo_cli.errors import GtpoError
from gtpo_cli.text import printable

EXIT_ERROR = 2  # a GtpoError: bad recipe, data, model, checkpoint; or the operating system refused something
EXIT_NO_READER = 1

_ELSEWHERE = "name another folder (output_dir, --out), or ask for the right to write there"
REMEDIES = {
    errno.ENOSPC: "free some space, or name another disk (output_dir, --out); gtpo train --resume goes on with a run",
    errno.EDQUOT: "free some of your quota, or name another disk (output_dir, --out)",
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.EROFS: _ELSEWHERE,
    errno.ENOENT: "create the folder first, or correct the name",
    errno.ENOTDIR: "a file stands where a folder is meant: name another",
    errno.EISDIR: "a folder stands where a file is meant: name another",
    errno.ENAMETOOLONG: "choose a shorter name (run_name, output_dir)",
    errno.EMFILE: "too many files are open: raise the limit with ulimit -n",
}

app = typer.Typer(
    name="gtpo",
    help="Fine-tune a language model by reinforcement learning with verifiable rewards (GTPO, GRPO, SFT).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train)
app.command("eval")(evaluate)
app.command("compare")(compare)
app.command("report")(report)
app.command("inspect")(inspect)
app.command("generate")(generate)
app.command("export")(export)
app.command("probe-entropy")(probe_entropy)
app.command("sweep")(sweep)
app.command("plan")(plan)
app.command("doctor")(doctor)
app.add_typer(recipes_app, name="recipes")


def _show_version(value: bool) -> None:
    if value:
        print(f"gtpo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the command `gtpo`: errors that a user can act on are printed without a traceback.

    Those are ours, and what the operating system refuses (a full disk, a folder that may not be written). Anything else
    is a fault of the program and keeps its traceback.
    """
    # Forks of worker processes after the tokenizer was used would only print advice; we start none by fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # User rewards may lie in the working folder, as with `python -m`; last, so that they shadow nothing installed.
    sys.path.append(str(Path.cwd()))
    # bitsandbytes says at import that an optional kernel is not there; nothing a user could or should do about it.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # Rust's own account of a panic in tokenizers would bury the line that we say about it.
    os.environ["RUST_BACKTRACE"] = "0"
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is not None:  # it may be closed
            setattr(sys, name, CleanStream(stream))
    try:
        try:
            app()
        except SystemExit:
            sys.stdout.flush()  # here, where a full disk and a reader that has gone can still be told apart
            raise
    except GtpoError as error:
        if "--debug" in sys.argv:
            raise
        for line in str(error).split("\n"):
            print(f"error: {line}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    except BrokenPipeError:  # `gtpo ... | head`: nobody is left to tell; exit as other programs do
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_NO_READER)
    except OSError as error:
        if "--debug" in sys.argv or error.errno is None:  # without a number it is not the operating system's
            raise
        print(f"error: {refused(error)}", file=sys.stderr)
        if error.filename is None:  # it may be the output itself that cannot be written
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


class CleanStream:
    """Standard output or error, through which no text steers the terminal; `gtpo_cli.tracking.console` for rich's.

    rich writes to `rich_proxied_file`: its consoles colour what they show. A carriage return may begin what is written,
    as progress bars of libraries do.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character

    def write(self, text: str) -> int:
        start = "\r" if text.startswith("\r") else ""
        return self.rich_proxied_file.write(start + printable(text[len(start) :]))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def refused(error: OSError) -> str:
    """What the operating system refused, in one line: the file, why, and the remedy."""
    files = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
    where = " -> ".join(files) or "output or network"
    remedy = REMEDIES.get(error.errno or 0, "correct that, and call the command again")
    return f"{where}: {error.strerror}; {remedy}"
