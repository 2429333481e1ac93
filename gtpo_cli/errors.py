"""Errors that a user can act on. Each message says what is wrong, where, and the remedy."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any


class GtpoError(Exception):
    """Base of all errors that gtpo raises on purpose; the command line prints its message without a traceback."""


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_WORDS = (*map(os.strerror, DISK_FULL), "unexpected pos")  # the last is all that torch says of a cut write


def system_words(error: BaseException) -> str:
    """Return the system's words for a failure in one line. A full disk is called so, also by libraries' errors, which
    have no number."""
    words = " ".join(str(getattr(error, "strerror", None) or error).split())
    return f"disk full: {words}" if disk_is_full(error) else words


def disk_is_full(error: BaseException) -> bool:
    return getattr(error, "errno", None) in DISK_FULL or any(words in str(error) for words in _FULL_WORDS)


class RecipeError(GtpoError):
    """A recipe cannot be found, read, or used. The error holds every problem, not only the first."""

    def __init__(self, problems: str | list[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class DataError(GtpoError):
    """A data file or data set cannot be read, or holds no usable problem."""


class ModelError(GtpoError):
    """A model, tokenizer or adapter cannot be loaded or does not fit the recipe."""


class GenerationError(GtpoError):
    """Completions cannot be sampled."""


class NotReadyError(GtpoError):
    """This machine lacks something that a run needs. The message has a line for each, with its remedy."""


class NotFiniteError(GenerationError):
    """The model's log-probabilities are infinite or NaN, so nothing can be sampled."""


class RewardError(GtpoError):
    """A reward function cannot be loaded, or returned something other than a reward."""


class CheckpointError(GtpoError):
    """A checkpoint cannot be written, read, or does not belong to the run."""


class EvaluationError(GtpoError):
    """An evaluation or a probe cannot be carried out."""


class ExportError(GtpoError):
    """A run's export cannot be written, converted, loaded back correctly, or pushed."""


def install(extra: str) -> str:
    """Return the command that installs an extra of gtpo, which is not on any package index."""
    versions = " -c constraints-cuda.txt" if extra == "cuda" else ""
    in_checkout = Path("gtpo_cli").is_dir()
    return f"{pip_install(anywhere=not in_checkout)} '.[{extra}]'{versions} in gtpo's checkout"


def pip_install(*, anywhere: bool = False) -> str:
    """Return `... -m pip install` of the running Python as typed in this folder, or with `anywhere` in any folder."""
    return f"{_typed(Path(sys.executable), anywhere=anywhere)} -m pip install"


def gtpo() -> str:
    """Return this program as typed here: `gtpo` if the shell would find it, else the way it was called."""
    called, python = Path(sys.argv[0]), Path(sys.executable)
    if called.parts[-2:] == ("gtpo_cli", "__main__.py"):
        return "gtpo" if _is_found(python.with_name("gtpo")) else f"{_typed(python)} -m gtpo_cli"
    return _typed(called) if called.name == "gtpo" and called.exists() else "gtpo"


def program(name: str) -> str:
    """Return a library's command as typed here: the one beside the running Python, else another on PATH."""
    beside = Path(sys.executable).with_name(name)
    return _typed(beside) if beside.exists() else name


def _typed(program: Path, *, anywhere: bool = False) -> str:
    """Return a program's name if the shell would find it, else its path, relative if that is shorter."""
    if _is_found(program):
        return program.name
    path = str(program.absolute())
    return shlex.quote(path if anywhere else min(os.path.relpath(path), path, key=len))


def _is_found(program: Path) -> bool:
    """Return whether the program's name resolves to it. A link to the same Python elsewhere is another environment."""
    found = shutil.which(program.name)
    return found is not None and Path(found).parent.resolve() == program.parent.resolve()


WORDS = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGINT: "interrupted"}


class Terminated(BaseException):
    """A signal ends the program; `words` say what is lost. A BaseException, so that `except Exception` lets it pass."""

    def __init__(self, number: int, words: str = "") -> None:
        self.number = signal.Signals(number)
        self.words = words or WORDS[self.number]
        super().__init__(self.words)

    @property
    def exit_code(self) -> int:
        return 128 + self.number


# Exceptions that error handling around foreign code lets pass: gtpo's own errors and the end of the program.
PASSING = (GtpoError, KeyboardInterrupt, GeneratorExit, Terminated)
Kinds = type[BaseException] | tuple[type[BaseException], ...]


@contextmanager
def translated(kinds: Kinds, wrong: Callable[[Any], BaseException], *, passing: Kinds = PASSING) -> Iterator[None]:
    """Turn an exception of these kinds into `wrong(exception)`, unless it is one of `passing`.

    All context managers of gtpo that translate exceptions build on this one.
    """
    try:
        yield
    except passing:
        raise
    except kinds as error:
        raise wrong(error) from error


def ended_with(words: Callable[[], str]) -> AbstractContextManager[None]:
    """Add `words()` to the message if a signal ends the work in the block."""

    def ended(end: KeyboardInterrupt | Terminated) -> Terminated:
        number = end.number if isinstance(end, Terminated) else signal.SIGINT
        return Terminated(number, WORDS[number] + words())

    return translated((KeyboardInterrupt, Terminated), ended, passing=())


# Messages of the operating system, torch, safetensors and the dynamic linker for failed allocations.
_NO_MEMORY = (
    "DefaultCPUAllocator", "annot allocate memory", "can't allocate memory", "not enough memory", "bad_alloc",
    "failed to map segment", "can't start new thread",
)  # fmt: skip
# The same of CUDA's runtime and driver through torch, vLLM's allocator ("CUDA Error: out of memory at ...") and cuBLAS.
_NO_GPU_MEMORY = re.compile(r"CUDA (driver )?error: out of memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)


def out_of_memory(error: BaseException) -> str | None:
    """Return whose memory ran out, "the GPU" or "this machine"; None for any other error.

    Unsloth raises a MemoryError for a GPU, torch a RuntimeError for the machine.
    """
    said = str(error)
    if type(error).__name__ == "OutOfMemoryError" or (isinstance(error, MemoryError) and "GPU" in said):
        return "the GPU"
    if isinstance(error, RuntimeError) and _NO_GPU_MEMORY.search(said):
        return "the GPU"
    no_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    return "this machine" if no_memory or any(words in said for words in _NO_MEMORY) else None
