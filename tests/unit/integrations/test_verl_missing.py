"""The plug-in where verl is not installed; tests/verl has the rest."""

from __future__ import annotations

import importlib.util

import pytest

from gtpo_cli.errors import ModelError


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed")
def test_without_verl_the_plug_in_names_the_extra() -> None:
    with pytest.raises(ModelError, match=r"pip install '\.\[verl\]'"):
        importlib.import_module("gtpo_cli.integrations.verl")
