"""The command line: one file per command, for parsing and printing. Heavy imports wait until a command runs."""

from __future__ import annotations

import errno
import logging
import os
import re
import resource
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gtpo_cli import __version__
from gtpo_cli.errors import GtpoError, NotReadyError, Terminated, gtpo, out_of_memory, system_words
from gtpo_cli.terminal.signals import ending_signals, raise_again, raise_ended
from gtpo_cli.terminal.streams import clean_streams, drop_output, open_streams

COMMANDS = {  # name: (module in cli/, with a function or group of the same name; line)
    "init": (
        "init",
        "Write a recipe for your model, data and GPU: the paper's settings, scaled down until gtpo plan says they fit.",
    ),
    "train": ("train", "Train a model from a recipe; without one, the built-in model on arithmetic."),
    "eval": (
        "evaluate",
        "Measure a trained model on unseen problems: accuracy, pass@k, maj@k, format, entropy, length.",
    ),
    "runs": ("runs", "List the runs in a folder, newest first: name, method, steps, accuracy, age."),
    "compare": (
        "compare",
        "Compare evaluated runs on the problems they share: is B better than A, and by how much?",
    ),
    "report": (
        "report",
        "Write one HTML file about one or more runs: curves, benchmark table, recipes, samples. It needs no network.",
    ),
    "inspect": (
        "inspect",
        "Show a training step as GTPO saw it: each completion's tokens coloured by their weight lambda, and why.",
    ),
    "generate": (
        "generate",
        "Ask a model and watch it answer: streamed text, the answer that the rewards extract, and with --gold its "
        "reward.",
    ),
    "export": (
        "export",
        "Write a trained model for others to load: as an adapter, merged into its base, or as GGUF.",
    ),
    "try-reward": (
        "try_reward",
        "Test the reward on a few completions of the untrained model: what each earns, and the spread in each group.",
    ),
    "probe-entropy": (
        "probe_entropy",
        "Measure the initial entropy <H>_ini of the untrained model, which decides about the entropy filter.",
    ),
    "tasks": (
        "tasks",
        "List the tasks that make their problems; show one's questions, answers and configuration.",
    ),
    "sweep": (
        "sweep",
        "Train named variants of a recipe with several seeds, and compare them: every figure of the paper.",
    ),
    "plan": ("plan", "Estimate steps, tokens, GPU memory by part, what fits, and the hours. Loads no weights."),
    "doctor": (
        "doctor",
        "Check whether training can start here: software, GPU, engines, hub, wandb, disk. Each problem has a remedy.",
    ),
    "recipes": ("recipes", "List, show, copy and check recipes."),
}


_LONGEST = 4000  # characters of an error, which may quote a stranger's file
EXIT_ERROR = 2  # a GtpoError (bad recipe, data, model, checkpoint), or an error of the operating system
EXIT_NO_READER = 1

_ELSEWHERE = "name another folder (output_dir, --out), or ask for the right to write there"
REMEDIES = {
    errno.ENOSPC: "free some space, or name another disk (output_dir, --out); gtpo train --resume continues a run",
    errno.EDQUOT: "free some of your quota, or name another disk (output_dir, --out)",
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.EROFS: _ELSEWHERE,
    errno.ENOENT: "create the folder first, or correct the name",
    errno.ENOTDIR: "this is a file, but a folder is needed: name another",
    errno.EISDIR: "this is a folder, but a file is needed: name another",
    errno.ENAMETOOLONG: "choose a shorter name (--name, output_dir)",
    errno.EBADF: "leave standard output open, or send it to a file",
    errno.EMFILE: "too many files are open: raise the limit with ulimit -n",
}
LEAST_ADDRESS_SPACE = 1_500_000_000
MORE_MEMORY = (
    "lower training.micro_batch_size, rollout.group_size or rollout.max_completion_tokens, choose a smaller model "
    "(gtpo plan says what fits), or stop other programs that use it"
)


def import_command(name: str) -> Any:
    """Import a command with its options from its module."""
    module, _ = COMMANDS[name]
    found = getattr(import_module(f"gtpo_cli.cli.{module}"), module)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        found = alone
    return typer.main.get_command(found)


class _Commands(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, known, rest = super().resolve_command(ctx, args)
        return name, import_command(str(name)) if known else None, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would exit silently
            raise Terminated(signal.SIGINT) from None
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # click's class; newer versions of typer carry a copy
                _name_key(error)
            raise


def _name_key(error: Any) -> None:
    """Say how to set an unknown option that is a recipe key, here or in another tool."""
    from gtpo_cli.recipe.synonyms import keys_for

    options = {option for parameter in error.ctx.command.params for option in parameter.opts}
    if {f"{error.option_name}s", error.option_name.removesuffix("s")} & options:
        return  # click suggests that option
    word = error.option_name.lstrip("-")
    keys = keys_for(f"evaluation.{word}" if error.ctx.info_name == "eval" else word) if "--set" in options else []
    hints = [key.note if key.key is None else f"use --set {key.key}=VALUE: {key.meaning}" for key in keys]
    if hints:
        error.message, error.possibilities = f"No such option: {error.option_name}; {'; or '.join(hints)}", None


app = typer.Typer(
    cls=_Commands,
    name="gtpo",
    help="Fine-tune a language model by reinforcement learning with verifiable rewards (GTPO, GRPO, SFT).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, (_, _line) in COMMANDS.items():  # name and line only: `resolve_command` imports the command itself
    app.command(_name, help=_line)(lambda: None)
_OWN_COMMANDS = re.compile(rf"(?<![\w./-])gtpo(?= (?:{'|'.join(COMMANDS)})\b)")


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
    """Run the command `gtpo`, and print errors that a user can act on without a traceback.

    Those are our own errors, errors of the operating system (a full disk, a read-only folder) and out of memory. Any
    other error is a bug and keeps its traceback.
    """
    open_streams()
    # Otherwise tokenizers print advice when a process forks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Threads of torch (GNU OpenMP) that wait for each other first spin 300,000 turns of 50 ns. That is 16 ms per
    # operation when another program has one of the cores. 1000 is OpenMP's own value when threads outnumber cores.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read when torch is imported
    # At import, bitsandbytes warns about an optional kernel that users cannot install.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # Rust's backtrace of a panic in tokenizers would bury our error message.
    os.environ["RUST_BACKTRACE"] = "0"
    clean_streams()
    for number in ending_signals():
        signal.signal(number, raise_ended)
    sys.unraisablehook = raise_again
    try:
        Path.cwd()  # raises if the working folder is gone
        _check_address_space()
        try:
            app()
        except SystemExit:
            sys.stdout.flush()  # here, where a full disk and a closed pipe can still be told apart
            raise
    except Terminated as end:
        for number in (signal.SIGINT, *ending_signals()):
            signal.signal(number, signal.SIG_DFL)  # a second signal ends the program silently
        print(as_typed_here(end.words), file=sys.stderr)
        sys.exit(end.exit_code)
    except BrokenPipeError:  # `gtpo ... | head`: exit silently, as other programs do
        sys.exit(EXIT_NO_READER)
    except Exception as error:
        if "--debug" in sys.argv or (lines := _error_lines(error)) is None:
            raise
        for line in lines:
            print(
                f"error: {as_typed_here(line if len(line) <= _LONGEST else line[:_LONGEST] + ' ...')}", file=sys.stderr
            )
        for note in getattr(error, "__notes__", []):  # what was saved, and how to go on
            print(as_typed_here(note), file=sys.stderr)
        sys.exit(EXIT_ERROR)
    finally:
        drop_output()


def _check_address_space() -> None:
    """Raise NotReadyError where OpenBLAS or Rust libraries would abort or hang during import."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed not in (resource.RLIM_INFINITY, -1) and allowed < LEAST_ADDRESS_SPACE:
        raise NotReadyError(
            f"ulimit -v allows {allowed / 1e9:.1f} GB of address space, and torch and transformers alone need "
            f"{LEAST_ADDRESS_SPACE / 1e9:.1f} GB; raise it (ulimit -v unlimited)"
        )


def as_typed_here(text: str) -> str:
    """Replace `gtpo` in the commands of a message by what can be typed here."""
    return _OWN_COMMANDS.sub(lambda _: gtpo(), text)


def _error_lines(error: Exception) -> list[str] | None:
    """Return the lines that tell a user about an error; None for a bug."""
    if isinstance(error, GtpoError):
        return str(error).splitlines()
    if (device := out_of_memory(error)) is not None:
        detail = " ".join(str(error).split())[:200]
        return [f"{device} has no more memory{f' ({detail})' if detail else ''}; {MORE_MEMORY}"]
    if isinstance(error, OSError) and error.errno is not None:  # libraries raise some without a number
        return [refused(error)]
    return None


def refused(error: OSError) -> str:
    """Describe an error of the operating system in one line: the file, the reason and the remedy."""
    try:
        Path.cwd()
    except OSError:
        return "the working folder was deleted or moved; go to an existing one (cd), and run the command again"
    files = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
    where = " -> ".join(files) or "output or network"
    remedy = REMEDIES.get(error.errno or 0, "correct that, and run the command again")
    return f"{where}: {system_words(error)}; {remedy}"
