"""How many rows (completions) go through a model at once, and what happens when memory runs out."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from gtpo_cli.errors import GtpoError


class RowLimit:
    """A number of rows that is halved whenever memory runs out, and stays so."""

    def __init__(self, rows: int, *, words: str, failure: GtpoError, warn: Callable[[str], None] | None = None) -> None:
        """`words` ends the sentence 'out of memory: 4 completions at a time from now on ...'; `failure` is raised
        when even one row does not fit; `warn` gets the sentence (default: a Python warning)."""
        self.rows = rows
        self._words = words
        self._failure = failure
        self.warn = warn or (lambda text: warnings.warn(text, RuntimeWarning, stacklevel=3))

    def run(self, work: Callable[[int], None], *, at_most: int | None = None) -> None:
        """Call `work(rows)`; after an out-of-memory, free what can be freed and start it over with half the rows.

        `at_most`: how many rows there are; the limit itself only changes when memory runs out. `work` must be able to
        start over. Raises `failure` when even one row does not fit.
        """
        while True:
            rows = self.rows if at_most is None else max(1, min(self.rows, at_most))
            try:
                work(rows)
                return
            except torch.OutOfMemoryError as error:
                if rows == 1:
                    raise self._failure from error
                self.rows = rows // 2
                self.warn(f"out of memory: {self.rows} completions at a time from now on {self._words}")
            # outside the except block: there, the traceback would still hold the tensors
            torch.cuda.empty_cache()
