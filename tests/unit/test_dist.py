"""scripts/release/check_dist.py names each thing that a wheel or sdist has too much or too little."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import check_dist
import pytest

PACKAGE = {"gtpo_cli/a.py": b"a = 1\n", "gtpo_cli/w.bin": b"\0\1", "recipes/r.yaml": b"seed: 1\n"}
BESIDE = {name: name.encode() for name in check_dist.BESIDE + check_dist.BUILD}
ABOUT = "p-1.dist-info/"
WHEEL = {"gtpo_cli/a.py": b"a = 1\n", "gtpo_cli/w.bin": b"\0\1", "gtpo_cli/_recipes/r.yaml": b"seed: 1\n"} | {
    ABOUT + "METADATA": b"about", ABOUT + "licenses/LICENSE": b"LICENSE", ABOUT + "RECORD": b"",
}  # fmt: skip
SDIST = PACKAGE | BESIDE | {"PKG-INFO": b"about"}
NONE: dict[str, bytes] = {}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, data in (PACKAGE | BESIDE | {"gtpo_cli/untracked.py": b""}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", *PACKAGE], cwd=tmp_path, check=True)
    monkeypatch.setattr(check_dist, "ROOT", tmp_path)
    return tmp_path


def wrong(folder: Path, wheel: dict[str, bytes], sdist: dict[str, bytes], without: str = "") -> list[str]:
    folder.mkdir()
    with zipfile.ZipFile(folder / "p-1-py3-none-any.whl", "w") as archive:
        for name, data in (WHEEL | wheel).items():
            if name != without:
                archive.writestr(name, data)
    with tarfile.open(folder / "p-1.tar.gz", "w:gz") as made:
        for name, data in (SDIST | sdist).items():
            if name != without:
                member = tarfile.TarInfo(f"p-1/{name}")
                member.size = len(data)
                made.addfile(member, io.BytesIO(data))
    return check_dist.check_contents(folder)


def test_what_is_tracked_and_nothing_else_is_right(checkout: Path) -> None:
    assert wrong(checkout / "dist", NONE, NONE) == []


@pytest.mark.parametrize(
    ("wheel", "sdist", "without", "words"),
    [
        (NONE, NONE, "gtpo_cli/_recipes/r.yaml", "p-1-py3-none-any.whl: gtpo_cli/_recipes/r.yaml is not in it"),
        (NONE, NONE, "recipes/r.yaml", "p-1.tar.gz: recipes/r.yaml is not in it"),
        (NONE, NONE, ABOUT + "licenses/LICENSE", "p-1-py3-none-any.whl: no LICENSE"),
        ({"gtpo_cli/untracked.py": b""}, NONE, "", "p-1-py3-none-any.whl: gtpo_cli/untracked.py does not belong in it"),
        (NONE, {"tests/data.json": b"{}"}, "", "p-1.tar.gz: tests/data.json does not belong in it"),
        ({"gtpo_cli/a.py": b"a = 2\n"}, NONE, "", "p-1-py3-none-any.whl: gtpo_cli/a.py is changed"),
        (NONE, {"PKG-INFO": b"other"}, "", "p-1.tar.gz: PKG-INFO is not the wheel's METADATA"),
    ],
)
def test_each_fault_is_named(
    checkout: Path, wheel: dict[str, bytes], sdist: dict[str, bytes], without: str, words: str
) -> None:
    assert wrong(checkout / "dist", wheel, sdist, without) == [words]


def test_the_path_of_the_checkout_is_found(checkout: Path) -> None:
    record = {ABOUT + "RECORD": f"made in {checkout}".encode()}
    assert wrong(checkout / "dist", record, NONE) == [f"RECORD: holds the path {checkout}"]
