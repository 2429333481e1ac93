"""The layer check finds what it is for."""

from __future__ import annotations

from pathlib import Path

import check_layers
import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_house_is_in_order() -> None:
    assert check_layers.violations(ROOT / "gtpo_cli") == []


@pytest.mark.parametrize(
    ("file", "source", "words"),
    [
        ("objective/x.py", "from gtpo_cli.training.step import train_step", "objective (floor 2) imports training"),
        ("objective/x.py", "def f():\n    import gtpo_cli.cli.app", "x.py:2: objective (floor 2) imports cli"),
        ("runs/x.py", "from gtpo_cli.objective import LN_2", "runs (floor 2) imports objective (floor 2)"),
        ("data/x.py", "from gtpo_cli import policy", "data (floor 5) imports policy (floor 7)"),
        ("training/x.py", "from gtpo_cli.tools.export import peft", "training (floor 9) imports tools (floor 12)"),
        (
            "tools/report/x.py",
            "from gtpo_cli.tools.export import peft",
            "the tool report imports tools.export, another",
        ),
        ("tools/report/x.py", "from gtpo_cli.tools import export", "the tool report imports tools.export, another"),
        ("attic/x.py", "", "attic stands on no floor"),
        ("data/x.py", "from ..policy import tiny", "imports <relative>"),
    ],
)
def test_an_import_against_the_floors_is_named(tmp_path: Path, file: str, source: str, words: str) -> None:
    target = tmp_path / "gtpo_cli" / file
    target.parent.mkdir(parents=True)
    target.write_text(source, encoding="utf-8")
    (problem,) = check_layers.violations(tmp_path / "gtpo_cli")
    assert words in problem


def test_imports_downwards_and_at_home_are_fine(tmp_path: Path) -> None:
    target = tmp_path / "gtpo_cli" / "data" / "x.py"
    target.parent.mkdir(parents=True)
    target.write_text(
        "import torch\nfrom gtpo_cli.types import Problem\nfrom gtpo_cli.data.y import z\n", encoding="utf-8"
    )
    assert check_layers.violations(tmp_path / "gtpo_cli") == []
