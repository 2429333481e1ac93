"""`from gtpo_cli import ...`: light, complete, typed."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gtpo_cli

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "pydantic", "numpy", "transformers", "yaml")


def imported_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_package_alone_imports_nothing_heavy() -> None:
    assert imported_by("import gtpo_cli; dir(gtpo_cli); gtpo_cli.__version__") == set()


def test_all_names_are_the_very_objects() -> None:
    assert {"policy_loss", "pass_at_k", "accuracy_reward", "load_recipe", "ConflictSpans"} <= set(gtpo_cli.__all__)
    assert len(set(gtpo_cli.__all__)) == len(gtpo_cli.__all__)
    stub = (ROOT / "gtpo_cli" / "__init__.pyi").read_text(encoding="utf-8")
    homes = re.findall(r"^from (\.[\w.]+) import (\w+) as \2$", stub, re.MULTILINE)
    assert sorted(name for _, name in homes) == sorted(set(gtpo_cli.__all__) - {"__version__"})
    for home, name in homes:
        assert getattr(gtpo_cli, name) is getattr(importlib.import_module(home, "gtpo_cli"), name), name
    assert set(gtpo_cli.__all__) <= set(dir(gtpo_cli))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No gtpo_cli attribute polcy_loss"):
        _ = gtpo_cli.polcy_loss
    with pytest.raises(ImportError, match="polcy_loss"):
        exec("from gtpo_cli import polcy_loss")
    from gtpo_cli import objective  # a room is still a module

    assert objective.policy_loss is gtpo_cli.policy_loss


@pytest.mark.slow
def test_mypy_sees_every_name_with_its_type(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    names = sorted(set(gtpo_cli.__all__) - {"__version__"})
    program = f"from gtpo_cli import {', '.join(names)}\n" + "".join(f"reveal_type({name})\n" for name in names)
    (tmp_path / "user.py").write_text(program + "wrong: int = pass_at_k(4, 2, 1)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(tmp_path / "user.py")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    revealed = [line for line in done.stdout.splitlines() if "Revealed type is" in line]
    assert len(revealed) == len(names), done.stdout
    assert [line for line in revealed if '"Any"' in line or '"builtins.object"' in line] == []
    assert done.stdout.count("error:") == 1, done.stdout
    assert 'expression has type "float", variable has type "int"' in done.stdout


@pytest.mark.slow
def test_the_page_names_what_there_is_and_what_needs_torch() -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    names_of = {
        needs: re.findall(r"`(\w+)`", " ".join(row[0] for row in rows if row[-1] == needs)) for needs in ("yes", "no")
    }
    assert sorted(names_of["yes"] + names_of["no"]) == sorted(set(gtpo_cli.__all__) - {"__version__"})
    for needs, names in names_of.items():
        assert ("torch" in imported_by(f"from gtpo_cli import {', '.join(names)}")) is (needs == "yes")


@pytest.mark.slow
def test_the_page_s_first_example_trains_and_evaluates(tmp_path: Path) -> None:
    """As a script without a guard around its lines, with a reward in workers of its own."""
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    example = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)[0]
    small = ["training.max_steps=2", "rollout.prompts_per_step=2", "objective.initial_entropy=0.1"]
    small += ["rewards.plugins=[{name: short.py:short}]"]
    (tmp_path / "short.py").write_text("def short(problem, completion):\n    return 1.0\n")
    script = example.replace('["training.max_steps=100"]', repr(small)).replace("limit=200", "limit=4")
    assert repr(small) in script
    script += "print(run.path, len(run.metrics_file.read_text().splitlines()))\n"
    script += "print(results['arithmetic'].scores['short.py:short'].interval.estimate)\n"
    script += "print(evaluate(run.path, ['evaluation.limit=4'], checkpoint=2) == results)\n"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    *_, interval, run, short, again = done.stdout.splitlines()
    assert re.fullmatch(r"Interval\(estimate=[01]\.\d+, low=0\.\d+, high=[01]\.\d+\)", interval)
    assert (run[:5], run[-2:]) == ("runs/", " 2")
    assert (float(short), again) == (1.0, "True")
