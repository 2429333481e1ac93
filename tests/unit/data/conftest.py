from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and tokenizers beside the checkout."""
    folder = Path(__file__).parents[3].parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared folder of real data is not beside this checkout")
    return folder
