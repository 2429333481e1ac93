"""The layer check finds what it is for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check_layers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_layers", ROOT / "scripts" / "check_layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_house_is_in_order(check_layers: ModuleType) -> None:
    assert check_layers.violations(ROOT / "gtpo_cli") == []


@pytest.mark.parametrize(
    ("file", "source", "words"),
    [
        ("objective/x.py", "from gtpo_cli.training.step import train_step", "objective (floor 2) imports training"),
        ("objective/x.py", "def f():\n    import gtpo_cli.cli.app", "x.py:2: objective (floor 2) imports cli"),
        ("rewards/x.py", "from gtpo_cli.objective import LN_2", "rewards (floor 2) imports objective (floor 2)"),
        ("data/x.py", "from gtpo_cli import models", "data (floor 3) imports models (floor 3)"),
        ("attic/x.py", "", "attic stands on no floor"),
        ("data/x.py", "from ..models import policy", "imports <relative>"),
    ],
)
def test_an_import_against_the_floors_is_named(
    check_layers: ModuleType, tmp_path: Path, file: str, source: str, words: str
) -> None:
    target = tmp_path / "gtpo_cli" / file
    target.parent.mkdir(parents=True)
    target.write_text(source, encoding="utf-8")
    (problem,) = check_layers.violations(tmp_path / "gtpo_cli")
    assert words in problem


def test_imports_downwards_and_at_home_are_fine(check_layers: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "gtpo_cli" / "data" / "x.py"
    target.parent.mkdir(parents=True)
    target.write_text(
        "import torch\nfrom gtpo_cli.types import Problem\nfrom gtpo_cli.data.y import z\n", encoding="utf-8"
    )
    assert check_layers.violations(tmp_path / "gtpo_cli") == []
