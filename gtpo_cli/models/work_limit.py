"""How much goes through a model at once, and what happens when memory runs out."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from gtpo_cli.errors import GtpoError


class WorkLimit:
    """A number of completions or tokens that is halved whenever memory runs out, and stays so."""

    def __init__(
        self,
        limit: int,
        *,
        unit: str = "completions",
        least: int = 1,
        words: str,
        failure: GtpoError,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`unit` and `words` make the sentence 'out of memory: 4 completions at a time from now on ...'; `failure` is
        raised when memory runs out at a limit of `least`; `warn` gets the sentence (default: a Python warning)."""
        self.limit = limit
        self.unit = unit
        self._least = least
        self._words = words
        self._failure = failure
        self.warn = warn or (lambda text: warnings.warn(text, RuntimeWarning, stacklevel=3))

    def run(self, work: Callable[[int], None], *, at_most: int | None = None) -> None:
        """Call `work(limit)`; after an out-of-memory, free what can be freed and start it over with half as much.

        `at_most`: how much there is; the limit itself only changes when memory runs out. `work` must be able to start
        over. Raises `failure` when not even the least fits.
        """
        while True:
            limit = self.limit if at_most is None else max(1, min(self.limit, at_most))
            try:
                work(limit)
                return
            except torch.OutOfMemoryError as error:
                if limit <= self._least:
                    raise self._failure from error
                self.limit = max(self._least, limit // 2)
                self.warn(f"out of memory: {self.limit:,} {self.unit} at a time from now on {self._words}")
            # outside the except block: there, the traceback would still hold the tensors
            torch.cuda.empty_cache()
