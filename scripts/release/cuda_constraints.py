"""Write constraints-cuda.txt: the exact versions that `.[cuda]` resolves to on Linux x86-64, for each Python.

    python scripts/release/cuda_constraints.py           # needs uv (python -m uv) and an index; downloads no wheel
    python scripts/release/cuda_constraints.py --check   # is the file still what its versions and the index resolve to

What constraints.txt pins, which the tests ran with, is pinned here too, except for the names in DIFFERENT. Every
package has to have a wheel for glibc 2.31, so that nothing is compiled. `--check` keeps the file's versions where they
still go together: a new release alone is no difference. It exits with 1 and says where file and resolution differ, or
why there is no resolution.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "constraints-cuda.txt"
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORM = "x86_64-manylinux_2_31"  # with 2.28 llguidance, which vLLM needs, has no wheel

# Versions whose sources were read for this or that were tested on a CPU; without them the newest would be taken.
PINS = (
    "unsloth==2026.10.9",
    "unsloth_zoo==2026.10.9",
    "vllm==0.32.0",
    "vllm-bnb-plugin==0.0.3",
    "trl==1.15.0",
    # 12.6 brings files of its own into cuda/bindings, the folder of cuda-bindings 13, and a resolver may choose it
    "cuda-python>=13",
)
# Names whose version here is not that of constraints.txt, and why.
DIFFERENT = {
    "numpy": "mistral-common, which vLLM needs, wants numpy < 2.4 below Python 3.13",
    "certifi": "Unsloth 2026.10.9 wants a newer one than the index behind constraints.txt had",
}
# Requirements that an index some days old cannot meet: not asked of it, and written as they are instead of a version.
NEWER_THAN_THE_INDEX = {"certifi": "certifi>=2026.10.19  # Unsloth 2026.10.9 asks for it"}

HEADER = """\
# The versions that `.[cuda]` resolves to on Linux x86-64 with Python 3.11, 3.12 and 3.13 and a CUDA build of torch:
#     pip install '.[cuda]' -c constraints-cuda.txt
# Written by scripts/release/cuda_constraints.py; make check-cuda-constraints resolves again.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where the file is no longer so")
    check = parser.parse_args().check
    before = FILE.read_text(encoding="utf-8") if check else ""
    resolved = {python: resolve(python, prefer=pins(before, python)) for python in PYTHONS}
    for name, line in NEWER_THAN_THE_INDEX.items():
        if all(Requirement(line.partition("#")[0]).specifier.contains(found[name]) for found in resolved.values()):
            print(f"{name}: the index has it now; take it out of NEWER_THAN_THE_INDEX and write the file again")
    if not check:
        FILE.write_text(HEADER + "".join(f"{line}\n" for line in lines(resolved)), encoding="utf-8")
        print(f"{FILE.name}: {' and '.join(f'{len(found)} packages for {p}' for p, found in resolved.items())}")
        return 0
    problems = [line for python in PYTHONS for line in differences(pins(before, python), resolved[python], python)]
    print("\n".join(problems) or f"{FILE.name} is what .[cuda] resolves to on Python {', '.join(PYTHONS)}")
    return 1 if problems else 0


def pins(text: str, python: str) -> dict[str, SpecifierSet]:
    """{canonical name: specifier} of a constraints file on that Python, e.g. 3.12."""
    found: dict[str, SpecifierSet] = {}
    for line in text.splitlines():
        if words := re.sub(r"(^|\s)#.*", "", line).strip():
            requirement = Requirement(words)
            if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
                found[canonicalize_name(requirement.name)] = requirement.specifier
    return found


def resolve(python: str, *, prefer: dict[str, SpecifierSet]) -> dict[str, str]:
    """{canonical name: version} of `.[cuda]` there. Exits with the resolver's words where there is no solution."""
    tested = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"), python)
    constraints = [f"{name}{specifier}" for name, specifier in tested.items() if name not in DIFFERENT] + [*PINS]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "constraints.txt").write_text("\n".join(constraints), encoding="utf-8")
        (folder / "overrides.txt").write_text("\n".join(NEWER_THAN_THE_INDEX), encoding="utf-8")
        out = folder / "out.txt"  # uv prefers the versions that its output has
        preferred = [f"{name}{spec}" for name, spec in prefer.items() if name not in NEWER_THAN_THE_INDEX]
        out.write_text("\n".join(preferred), encoding="utf-8")
        command = [
            sys.executable, "-m", "uv", "pip", "compile", "--quiet", str(ROOT / "pyproject.toml"), "--extra", "cuda",
            "--constraint", str(folder / "constraints.txt"), "--override", str(folder / "overrides.txt"),
            "--python-version", python, "--python-platform", PLATFORM, "--no-python-downloads",
            "--only-binary", ":all:", "--no-annotate", "--no-header", "--output-file", str(out),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"Python {python}: .[cuda] does not resolve; the resolver's words:\n{done.stderr}")
        found = pins(out.read_text(encoding="utf-8"), python)
    return {name: str(specifier).removeprefix("==") for name, specifier in found.items()}


def lines(resolved: dict[str, dict[str, str]]) -> list[str]:
    """The file's lines: one for each package, or for each of its versions with the Pythons that have it."""
    written = []
    for name in sorted({name for found in resolved.values() for name in found}):
        if name in NEWER_THAN_THE_INDEX:
            written.append(NEWER_THAN_THE_INDEX[name])
            continue
        where: dict[str, list[str]] = {}
        for python, found in resolved.items():
            if name in found:
                where.setdefault(found[name], []).append(python)
        for version, pythons in where.items():
            marker = " or ".join(f'python_version == "{python}"' for python in pythons)
            written.append(f"{name}=={version}" + ("" if len(pythons) == len(resolved) else f" ; {marker}"))
    return written


def differences(file: dict[str, SpecifierSet], resolved: dict[str, str], python: str) -> list[str]:
    """One line for each package that one of the two lacks or has in another version."""
    problems = []
    for name in sorted({*file, *resolved}):
        if name not in resolved:
            problems.append(f"Python {python}: {name}{file[name]} is in {FILE.name}, and nothing needs it")
        elif name not in file:
            problems.append(f"Python {python}: {name}=={resolved[name]} is needed and not in {FILE.name}")
        elif name not in NEWER_THAN_THE_INDEX and not file[name].contains(resolved[name], prereleases=True):
            problems.append(f"Python {python}: {name}{file[name]} in {FILE.name}, resolved to {resolved[name]}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
