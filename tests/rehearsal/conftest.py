"""Unsloth's CUDA code and vLLM's engine with a stand-in for the card (card.py): `make test-rehearsal`."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from environment import ENVIRONMENT  # noqa: E402

MISSING = [name for name in ("unsloth", "vllm", "vllm_bnb_plugin") if importlib.util.find_spec(name) is None]
MISSING += [name for name, value in ENVIRONMENT.items() if os.environ.get(name) != value]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if MISSING and HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"not here: {', '.join(MISSING)}; make test-rehearsal"))


@pytest.fixture(scope="session")
def on_card() -> Any:
    """Unsloth as gtpo imports it, on the card that is not there."""
    import card

    card.start()
    return card


@pytest.fixture(scope="session", autouse=True)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """From the first test on, where the tests of commands (test_typed*.py), which come last, are there."""
    from servers import families, start

    wanted = families({item.path.name for item in request.session.items})
    yield from start(wanted, tmp_path_factory.mktemp) if wanted else iter([{}])
