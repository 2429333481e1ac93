"""Collect what a GPU machine without a network lacks to train: wheels in parts, checksums, an install script.

    python scripts/wheelhouse.py --python 3.12 --torch 2.11.0 --have have.txt --max-part 60MiB

`have.txt` is the output of `pip freeze` there (names alone, one a line, will do). What is there stays as it is, torch
above all; gtpo itself is built from this checkout. Left out is what training does not need: the packages of reports
and uploads, and those that `--without` names. Copy the folder `wheelhouse/` over and run `sh install.sh` in it; a
second word names the folder to install into (`sh install.sh python3 site`, then PYTHONPATH=site).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
# Imported only by reports, pictures and uploads: a training run with tracking.wandb.mode: off never asks for them.
NOT_FOR_TRAINING = ("wandb", "matplotlib")
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)), "manylinux2014_x86_64")
_STUB = "+have"  # local version label of the empty wheels that stand for what the machine has

INSTALL = """\
#!/bin/sh
# sh install.sh [PYTHON] [FOLDER]: check the parts, join them, install the wheels (into FOLDER, else where PYTHON is).
set -eu
cd "$(dirname "$0")"
python="${{1:-python3}}"
"$python" - <<'END'
import sys
if "%d.%d" % sys.version_info[:2] != "{python}":
    sys.exit("these wheels are for Python {python}, this is " + sys.version)
END
sha256sum --check --quiet SHA256SUMS
rm -rf wheels && mkdir wheels
cat part-* | tar -x -C wheels
if [ $# -ge 2 ]; then set -- --upgrade --target "$2"; else set --; fi
"$python" -m pip install --quiet --no-index --no-deps --no-cache-dir "$@" wheels/*.whl
rm -rf wheels
echo "installed: {names}"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="its Python, e.g. 3.12")
    parser.add_argument("--torch", required=True, help="its torch, e.g. 2.11.0; it stays")
    parser.add_argument("--have", type=Path, help="what it has: the output of pip freeze there")
    parser.add_argument("--extra", action="append", default=[], help="extras of gtpo_cli (default: bnb)")
    parser.add_argument("--without", action="append", default=[], help="leave this package out too")
    parser.add_argument("--max-part", default="60MiB", help="largest part (default: 60MiB)")
    parser.add_argument("--out", type=Path, default=Path("wheelhouse"), help="folder to write (default: wheelhouse)")
    parser.add_argument("--pip", action="append", default=[], help="one more argument for pip download")
    arguments = parser.parse_args()
    have = read_have(arguments.have.read_text(encoding="utf-8") if arguments.have else "") | {"torch": arguments.torch}
    wanted, old = wanted_requirements(arguments.extra or ["bnb"], have, {*NOT_FOR_TRAINING, *arguments.without})
    for line in old:
        print(f"there, but not as gtpo needs it: {line}; carried")
    with tempfile.TemporaryDirectory() as temporary:
        wheels = Path(temporary) / "wheels"
        download(wanted, have, python=arguments.python, into=wheels, more=arguments.pip)
        build_gtpo(wheels)
        remove_what_is_there(wheels, have, arguments.without)
        kept = sorted(wheels.glob("*.whl"))
        pack(kept, arguments.out, python=arguments.python, max_part=size_of(arguments.max_part))
        for wheel in kept:
            print(f"{wheel.stat().st_size / 2**20:8.1f} MiB  {wheel.name}")
    parts = sorted(arguments.out.glob("part-*"))
    total = sum(part.stat().st_size for part in parts) / 2**20
    print(f"{arguments.out}: {len(kept)} wheels, {total:.1f} MiB in {len(parts)} parts; there: sh install.sh")
    return 0


def read_have(text: str) -> dict[str, str | None]:
    """{name: version, or None where only the name is known}; comments and `@ file` locations are no versions."""
    have: dict[str, str | None] = {}
    for line in text.splitlines():
        match = re.match(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:===?\s*([\w.+!-]+))?", line)
        if match and not line.lstrip().startswith(("#", "-")):
            have[canonicalize_name(match.group(1))] = match.group(2)
    return have


def wanted_requirements(
    extras: Iterable[str], have: dict[str, str | None], without: set[str]
) -> tuple[list[str], list[str]]:
    """gtpo's requirements without those that are left out; versions there that do not do are taken out of `have`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    wanted, old = [], []
    for requirement in map(Requirement, lines):
        name = canonicalize_name(requirement.name)
        if name in without:
            continue
        wanted.append(str(requirement))
        version = have.get(name)
        if version is not None and name != "torch" and not requirement.specifier.contains(version, prereleases=True):
            old.append(f"{name} {version}, needed {requirement.specifier}")
            del have[name]
    return wanted, old


def download(wanted: list[str], have: dict[str, str | None], *, python: str, into: Path, more: list[str]) -> None:
    """Let pip resolve and fetch for that machine. What it has stands there as empty wheels of the same version."""
    into.mkdir()
    with tempfile.TemporaryDirectory() as temporary:
        stubs, constraints = Path(temporary) / "stubs", Path(temporary) / "constraints.txt"
        stubs.mkdir()
        pins = []
        for name, version in have.items():
            if version is not None:
                write_stub(stubs, name, version)
                pins.append(f"{name}==={version.partition('+')[0]}{_STUB}")
        constraints.write_text("\n".join(pins) + "\n", encoding="utf-8")
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms,
            "--find-links", str(stubs), "--constraint", str(constraints), "--dest", str(into), *more, *wanted,
        ]  # fmt: skip
        done = subprocess.run(command, check=False)
        if done.returncode:
            sys.exit("pip found no set of wheels that goes with what is there; its message is above")


def write_stub(folder: Path, name: str, version: str) -> None:
    """A wheel with metadata and nothing else; it needs nothing, since what it stands for is installed."""
    version = version.partition("+")[0] + _STUB
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


def build_gtpo(wheels: Path) -> None:
    """gtpo_cli itself, from this checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(wheels), str(ROOT)], check=True)


def remove_what_is_there(wheels: Path, have: dict[str, str | None], without: Iterable[str]) -> None:
    """Stubs, and wheels of packages that are there or unwanted."""
    gone = {*have, *map(canonicalize_name, without)}
    for wheel in wheels.glob("*.whl"):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        if name in gone or str(version).endswith(_STUB):
            wheel.unlink()


def pack(wheels: list[Path], out: Path, *, python: str, max_part: int) -> None:
    """One tar archive cut into parts, with their checksums and the install script."""
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    sums = []
    with tempfile.TemporaryFile() as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for wheel in wheels:
                tar.add(wheel, arcname=wheel.name)
        archive.seek(0)
        number = 0
        while block := archive.read(max_part):
            part = out / f"part-{number:03d}"
            part.write_bytes(block)
            sums.append(f"{hashlib.sha256(block).hexdigest()}  {part.name}\n")
            number += 1
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    names = " ".join(str(parse_wheel_filename(wheel.name)[0]) for wheel in wheels)
    (out / "install.sh").write_text(INSTALL.format(python=python, names=names), encoding="utf-8")


def size_of(text: str) -> int:
    """60MiB, 500KiB, 1GiB or a number of bytes."""
    match = re.fullmatch(r"\s*(\d+)\s*(?:([KMG])i?B)?\s*", text, flags=re.IGNORECASE)
    if match is None or int(match.group(1)) == 0:
        sys.exit(f"--max-part: {text!r} is no size; write e.g. 60MiB")
    return int(match.group(1)) << {None: 0, "K": 10, "M": 20, "G": 30}[match.group(2) and match.group(2).upper()]


if __name__ == "__main__":
    sys.exit(main())
