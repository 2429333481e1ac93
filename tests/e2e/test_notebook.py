"""examples/quickstart.ipynb, executed as Jupyter does, and the outputs it is committed with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from commands import ROOT, environment

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def kinds(cell: Any) -> list[str]:
    """Without repetitions: a stream may be stored in pieces."""
    found = ("image" if "image/png" in output.get("data", {}) else output.get("name", "") for output in cell.outputs)
    return list(dict.fromkeys(found))


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """With fewer steps and problems."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    settings = code_cells(notebook)[0]
    for name, value in (("STEPS", 6), ("PROBLEMS", 4)):
        settings.source, times = re.subn(rf"^{name} = \d+", f"{name} = {value}", settings.source, flags=re.M)
        assert times == 1
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    client = nbclient.NotebookClient(
        notebook, timeout=300, coalesce_streams=True, resources={"metadata": {"path": str(tmp_path)}}
    )
    return client.execute()


def test_every_cell_of_the_quickstart_does_what_it_did(executed: Any) -> None:
    committed = code_cells(nbformat.read(NOTEBOOK, as_version=4))
    for was, cell in zip(committed, code_cells(executed), strict=True):
        assert kinds(cell) == kinds(was), text(cell)
        assert "error" not in text(cell).lower().replace("standard error", ""), text(cell)
        assert "\x1b[1A" not in text(cell)  # a page cannot go back a line
    _, train, curve, evaluation, comparison, inspection, export, asked = map(text, code_cells(executed))
    assert "done: runs/quickstart: step 6 of 6" in train
    assert curve == ""
    assert "4 problems, 8 completions each" in evaluation
    assert "4 shared problems" in comparison
    assert "In step 1 of runs/quickstart, " in inspection
    assert "answers to 8 problems were right" in inspection
    assert "runs/quickstart/export/merged: merged" in export
    assert "export of the run quickstart, step 6" in asked
    assert "the gold answer is 14" in asked


def test_the_committed_outputs_are_those_of_the_cells_as_they_stand() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    settings: dict[str, Any] = {}
    exec(cells[0].source, settings)
    outputs = [text(cell) for cell in cells]
    assert f"done: runs/{settings['RUN']}: step {settings['STEPS']} of {settings['STEPS']}" in outputs[1]
    assert f"{settings['PROBLEMS']} problems, 8 completions each" in outputs[3]
    (base, trained) = re.findall(r"^ ?accuracy +([\d.]+) % .*?([\d.]+) %", outputs[3], flags=re.M)[0]
    assert float(base) + 30 < float(trained)  # the better model that the page promises
    assert not re.search(r"/(?:home|root|tmp|work|Users)\b|site-packages", NOTEBOOK.read_text())
    assert NOTEBOOK.stat().st_size < 200_000
