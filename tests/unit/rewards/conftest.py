from __future__ import annotations

from collections.abc import Iterator

import pytest

from gtpo_cli.rewards import EqualityWorkers


@pytest.fixture(scope="module")
def workers() -> Iterator[EqualityWorkers]:
    with EqualityWorkers(timeout_seconds=20.0) as workers:
        yield workers
