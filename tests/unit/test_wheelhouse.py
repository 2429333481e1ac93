"""scripts/wheelhouse.py with the real pip on a small index of its own, up to the installation there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="module")
def wheelhouse() -> Any:
    spec = importlib.util.spec_from_file_location("wheelhouse", ROOT / "scripts" / "wheelhouse.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    stem = f"{name}-{version}"
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n" + "#" * 5000 + "\n")
        archive.writestr(
            f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        )
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")


@pytest.mark.slow
def test_what_is_there_is_neither_fetched_nor_replaced(wheelhouse: Any, tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.mkdir()
    wheel(index, "alpha", "1.5", "beta>=1", "gamma", "torch>=2", "delta")
    wheel(index, "beta", "3.0", "epsilon")  # newer than what is there
    wheel(index, "gamma", "0.1")
    wheel(index, "delta", "0.2")  # there, in a version that nobody knows
    have = wheelhouse.read_have("beta==2.0\ntorch==2.11.0+cu130\nDelta\n# comment\n-e git+x\n")
    assert have == {"beta": "2.0", "torch": "2.11.0+cu130", "delta": None}
    wheels = tmp_path / "wheels"
    offline = ["--no-index", "--find-links", str(index)]
    wheelhouse.download(["alpha>=1"], have, python=PYTHON, into=wheels, more=offline)
    wheelhouse.remove_what_is_there(wheels, have, [])
    assert sorted(path.name.partition("-")[0] for path in wheels.iterdir()) == ["alpha", "gamma"]
    with pytest.raises(SystemExit, match="pip found no set of wheels"):
        wheelhouse.download(["alpha>=2"], have, python=PYTHON, into=tmp_path / "none", more=offline)


@pytest.mark.slow
def test_the_parts_install_there_and_a_broken_one_does_not(wheelhouse: Any, tmp_path: Path) -> None:
    source = tmp_path / "wheels"
    source.mkdir()
    wheel(source, "alpha", "1.5", "beta")
    wheel(source, "gamma", "0.1")
    out, site = tmp_path / "out", tmp_path / "site"
    wheelhouse.pack(sorted(source.glob("*.whl")), out, python=PYTHON, max_part=4096)
    assert len(list(out.glob("part-*"))) >= 3
    assert max(part.stat().st_size for part in out.glob("part-*")) <= 4096
    install = ["sh", str(out / "install.sh"), sys.executable, str(site)]
    subprocess.run(install, check=True, capture_output=True)
    code = "import alpha, gamma; print(alpha.version, gamma.version)"
    shown = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert shown.stdout == "1.5 0.1\n"
    part = out / "part-001"
    part.write_bytes(bytes([part.read_bytes()[0] ^ 1]) + part.read_bytes()[1:])
    broken = subprocess.run(install, capture_output=True, text=True)
    assert broken.returncode != 0
    assert "part-001" in broken.stdout + broken.stderr


def test_wheels_for_another_python_are_refused(wheelhouse: Any, tmp_path: Path) -> None:
    wheelhouse.pack([], tmp_path / "out", python="3.7", max_part=100)
    done = subprocess.run(["sh", str(tmp_path / "out" / "install.sh"), sys.executable], capture_output=True, text=True)
    assert done.returncode != 0
    assert "these wheels are for Python 3.7" in done.stderr


def test_gtpos_requirements_without_what_training_needs_not(wheelhouse: Any) -> None:
    have = {"pydantic": "1.0", "typer": "0.29.2", "torch": "2.11.0"}
    wanted, old = wheelhouse.wanted_requirements(["bnb"], have, {"wandb", "matplotlib"})
    names = {Requirement(line).name for line in wanted}
    assert {"torch", "transformers", "peft", "pydantic", "bitsandbytes"} <= names
    assert not names & {"wandb", "matplotlib"}
    assert old == ["pydantic 1.0, needed >=2.11"]
    assert have == {"typer": "0.29.2", "torch": "2.11.0"}


@pytest.mark.slow
def test_training_asks_for_nothing_that_is_left_out(wheelhouse: Any, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({wheelhouse.NOT_FOR_TRAINING!r}))\n"  # None: import fails
        "from gtpo_cli.cli.app import main; main()"
    )
    words = ["train", "-q", "--set", "tracking.wandb.mode=off", "--set", "training.max_steps=1",
             "--set", "objective.probe.num_prompts=1", "--set", "run_name=bare"]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "runs" / "bare" / "metrics.jsonl").is_file()


@pytest.mark.parametrize(("text", "size"), [("60MiB", 60 << 20), ("500KB", 500 << 10), ("1GiB", 1 << 30), ("77", 77)])
def test_sizes(wheelhouse: Any, text: str, size: int) -> None:
    assert wheelhouse.size_of(text) == size
    with pytest.raises(SystemExit, match="is no size"):
        wheelhouse.size_of("much")
