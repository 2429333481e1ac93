"""Errors that a user can act on. Each message says what is wrong, where, and the remedy."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
    return f"pip install '.[{extra}]'{versions} in gtpo's checkout"


WORDS = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGINT: "interrupted"}


class Ended(BaseException):
    """A signal ends the program; `words` say so, and what is lost. No Exception: nothing that goes on may catch it."""

    def __init__(self, number: int, words: str = "") -> None:
        self.number = signal.Signals(number)
        self.words = words or WORDS[self.number]
        super().__init__(self.words)

    @property
    def exit_code(self) -> int:
        return 128 + self.number


@contextmanager
def ended_with(words: Callable[[], str]) -> Iterator[None]:
    """Around work that a signal may end: behind the signal's word comes what then became of it."""
    try:
        yield
    except (KeyboardInterrupt, Ended) as end:
        number = end.number if isinstance(end, Ended) else signal.SIGINT
        raise Ended(number, WORDS[number] + words()) from None


# What a wall around foreign code lets pass: our own errors, and the end of the program.
PASSING = (GtpoError, KeyboardInterrupt, GeneratorExit, Ended)


# What the operating system, torch, safetensors and the dynamic linker say where memory cannot be had.
_NO_MEMORY = (
    "DefaultCPUAllocator", "annot allocate memory", "can't allocate memory", "not enough memory", "bad_alloc",
    "failed to map segment", "can't start new thread",
)  # fmt: skip


def out_of_memory(error: BaseException) -> str | None:
    """Whose memory ran out, "the GPU" or "this machine"; None where the error is another. Unsloth raises a MemoryError
    for a GPU's, torch a RuntimeError for the machine's."""
    said = str(error)
    if type(error).__name__ == "OutOfMemoryError" or (isinstance(error, MemoryError) and "GPU" in said):
        return "the GPU"
    no_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    return "this machine" if no_memory or any(words in said for words in _NO_MEMORY) else None
