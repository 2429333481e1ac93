"""Where the evaluations of a model without a run are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from gtpo_cli.cli.evaluate import _folder_of
from gtpo_cli.cli.options import find_model


@pytest.mark.parametrize(
    ("model", "folder"),
    [("builtin:tiny", "builtin-tiny"), ("org/Some-1.5B", "org-Some-1.5B"), (".", "here"), ("..", "above")],
)
def test_every_model_has_a_folder_of_its_own(
    model: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "above" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "above" / "here")
    recipe, checkpoint, _ = find_model(model)
    assert checkpoint is None
    assert _folder_of(model, recipe).path == Path("runs") / "models" / folder
    assert recipe.model.name == model
