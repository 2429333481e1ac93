"""Is it the same answer? For single questions; a run grades many at once through `EqualityWorkers`.

How answers are compared is in `comparison.py`, the processes that do it in `workers.py`.
"""

from __future__ import annotations

import atexit
import functools
import os

from gtpo_cli.rewards.workers import Equality, EqualityWorkers, equal_without_algebra, usable_without_algebra

__all__ = ["Equality", "EqualityWorkers", "answers_equal", "gold_is_usable"]


def answers_equal(gold: str, predicted: str, *, question: str | None = None, timeout_seconds: float = 5.0) -> bool:
    r"""Is `predicted` the same answer as `gold`? docs/objective.md, section 2, and docs/rewards.md.

    Numbers compare as exact numbers (`1,319`, `$18.00`, `36/2`), LaTeX as mathematics (`\frac{1}{2}` = `0.5`), plain
    text case-folded; never by substring. An answer that takes longer than `timeout_seconds` of processor time, or
    more memory than a worker has, is not equal. A gold answer that is not usable (see `gold_is_usable`) equals nothing.

    With `question`, the answer must be worked out as well: an expression (`9+9`) does not answer a gold answer that is
    a number, and a formula that stands in the question answers only a gold answer that is written so.

    The first answer that needs computer algebra starts a worker process (one to two seconds), which serves all later
    calls and ends with this process. Raises RewardError when it cannot be started.
    """
    decided = equal_without_algebra(gold, predicted, question)
    if decided is not None:
        return decided
    pair = gold, predicted, question
    return _shared_workers(os.getpid()).equal_many([pair], timeout_seconds=timeout_seconds)[0].equal


def gold_is_usable(gold: str, *, timeout_seconds: float = 5.0) -> bool:
    r"""Can the gold answer be compared: a number, mathematics that parses, or plain text; or a list of these?

    Empty, unreadable (NUL) and broken (`\frac{1}{`) gold answers cannot; nothing equals them.
    """
    decided = usable_without_algebra(gold)
    if decided is not None:
        return decided
    return _shared_workers(os.getpid()).usable_many([gold], timeout_seconds=timeout_seconds)[0]


@functools.cache
def _shared_workers(process_id: int) -> EqualityWorkers:
    """One worker for all single questions of this process; a forked child must not read its parent's replies."""
    workers = EqualityWorkers(num_workers=1)
    atexit.register(workers.close)
    return workers
