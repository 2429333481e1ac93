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


class RecipeError(GtpoError):
    """A recipe cannot be found, read, or honoured. Holds every problem found, not only the first."""

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
    """This machine lacks what a run needs. A line for each thing, with its remedy."""


class NoRoomToSampleError(GenerationError):
    """The GPU's memory does not hold the engine that samples beside what training keeps. Nothing was changed."""


class NotFiniteError(GenerationError):
    """The model's log-probabilities are infinite or NaN: nothing can be sampled from it."""


class RewardError(GtpoError):
    """A reward function cannot be loaded, or returned something that is no reward."""


class CheckpointError(GtpoError):
    """A checkpoint cannot be written, read, or does not belong to the run."""


class EvaluationError(GtpoError):
    """An evaluation or a probe cannot be carried out."""


class ExportError(GtpoError):
    """A run cannot be exported: not written, converted, loaded back as it should be, or pushed."""


def install(extra: str) -> str:
    """The command for an extra of gtpo, which is on no package index."""
    versions = " -c constraints-cuda.txt" if extra == "cuda" else ""
    in_checkout = Path("gtpo_cli").is_dir()
    return f"{pip_install(anywhere=not in_checkout)} '.[{extra}]'{versions} in gtpo's checkout"


def pip_install(*, anywhere: bool = False) -> str:
    """`... -m pip install` of the Python that runs, as it is typed here; `anywhere`: as it is typed in any folder."""
    return f"{_typed(Path(sys.executable), anywhere=anywhere)} -m pip install"


def gtpo() -> str:
    """This program as it is typed here: `gtpo` where the shell would find it, else the way it was called."""
    called, python = Path(sys.argv[0]), Path(sys.executable)
    if called.parts[-2:] == ("gtpo_cli", "__main__.py"):
        return "gtpo" if _is_found(python.with_name("gtpo")) else f"{_typed(python)} -m gtpo_cli"
    return _typed(called) if called.name == "gtpo" and called.exists() else "gtpo"


def program(name: str) -> str:
    """A library's command as it is typed here: the one beside the Python that runs, else another on PATH."""
    beside = Path(sys.executable).with_name(name)
    return _typed(beside) if beside.exists() else name


def _typed(program: Path, *, anywhere: bool = False) -> str:
    """Its name where the shell would find it, else its path, from the working folder where that is shorter."""
    if _is_found(program):
        return program.name
    path = str(program.absolute())
    return shlex.quote(path if anywhere else min(os.path.relpath(path), path, key=len))


def _is_found(program: Path) -> bool:
    """Whether its name means it. A Python in another folder that is a link to the same file is another environment."""
    found = shutil.which(program.name)
    return found is not None and Path(found).parent.resolve() == program.parent.resolve()


WORDS = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGINT: "interrupted"}


class Terminated(BaseException):
    """A signal ends the program; `words` say so, and what is lost. No Exception: nothing that goes on may catch it."""

    def __init__(self, number: int, words: str = "") -> None:
        self.number = signal.Signals(number)
        self.words = words or WORDS[self.number]
        super().__init__(self.words)

    @property
    def exit_code(self) -> int:
        return 128 + self.number


# What a wall around foreign code lets pass: our own errors, and the end of the program.
PASSING = (GtpoError, KeyboardInterrupt, GeneratorExit, Terminated)
Kinds = type[BaseException] | tuple[type[BaseException], ...]


@contextmanager
def translated(kinds: Kinds, wrong: Callable[[Any], BaseException], *, passing: Kinds = PASSING) -> Iterator[None]:
    """An exception of these kinds becomes `wrong(it)`, except where it is one of `passing`. Every context manager of
    gtpo that says an exception in other words is made of this one."""
    try:
        yield
    except passing:
        raise
    except kinds as error:
        raise wrong(error) from error


def ended_with(words: Callable[[], str]) -> AbstractContextManager[None]:
    """Around work that a signal may end: behind the signal's word comes what then became of it."""

    def ended(end: KeyboardInterrupt | Terminated) -> Terminated:
        number = end.number if isinstance(end, Terminated) else signal.SIGINT
        return Terminated(number, WORDS[number] + words())

    return translated((KeyboardInterrupt, Terminated), ended, passing=())


# What the operating system, torch, safetensors and the dynamic linker say where memory cannot be had.
_NO_MEMORY = (
    "DefaultCPUAllocator", "annot allocate memory", "can't allocate memory", "not enough memory", "bad_alloc",
    "failed to map segment", "can't start new thread",
)  # fmt: skip
# What CUDA's runtime and driver say through torch, vLLM's allocator ("CUDA Error: out of memory at ...") and cuBLAS.
_NO_GPU_MEMORY = re.compile(r"CUDA (driver )?error: out of memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)


def out_of_memory(error: BaseException) -> str | None:
    """Whose memory ran out, "the GPU" or "this machine"; None where the error is another. Unsloth raises a MemoryError
    for a GPU's, torch a RuntimeError for the machine's."""
    said = str(error)
    if type(error).__name__ == "OutOfMemoryError" or (isinstance(error, MemoryError) and "GPU" in said):
        return "the GPU"
    if isinstance(error, RuntimeError) and _NO_GPU_MEMORY.search(said):
        return "the GPU"
    no_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    return "this machine" if no_memory or any(words in said for words in _NO_MEMORY) else None
