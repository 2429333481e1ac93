"""scripts/gpu: libraries cut to a card, parts that are joined again, and the driver of the stages. The stages
themselves are rehearsed in tests/rehearsal/test_campaign.py."""

from __future__ import annotations

import io
import json
import lzma
import os
import re
import runpy
import shutil
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

import fatbin
import pack
import pytest
import stages
import torch
from packaging.requirements import Requirement

from gtpo_cli.machine.installed import requirements

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts" / "gpu"


def fat_binary(*entries: tuple[int, int, bytes]) -> bytes:
    body = b"".join(_entry(*each) for each in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def _entry(kind: int, architecture: int, code: bytes) -> bytes:
    return struct.pack("<HHIQIIHHI32x", kind, 0, 64, len(code), 0, 0, 0, 0, architecture) + code


PTX, ELF = 1, 2


@pytest.mark.parametrize(
    ("entries", "kept"),
    [
        ([(ELF, 80, b"a" * 8), (ELF, 90, b"b" * 16), (PTX, 90, b"c" * 8)], [(ELF, 90)]),
        ([(ELF, 80, b"a" * 8), (PTX, 80, b"c" * 8), (PTX, 75, b"d" * 8)], [(PTX, 80)]),
        ([(ELF, 90, b"a" * 8), (ELF, 90, b"b" * 8)], [(ELF, 90), (ELF, 90)]),  # 9.0 and 9.0a
        ([(ELF, 100, b"a" * 8), (PTX, 120, b"b" * 8)], []),
    ],
)
def test_what_a_card_runs_is_kept(entries: list[tuple[int, int, bytes]], kept: list[tuple[int, int]]) -> None:
    library = b"code" + fat_binary(*entries) + b"between" + fat_binary((ELF, 90, b"z" * 8)) + b"end"
    cut = fatbin.cut(library, 90)
    assert len(cut) == len(library)
    assert (cut[:4], cut[-3:]) == (b"code", b"end")
    first, second = (unit.entries for unit in fatbin.fat_binaries(cut))
    assert [(each.kind, each.architecture) for each in first] == kept
    assert b"z" * 8 in cut[second[0].start : second[0].end]
    for kind, architecture, code in entries:
        assert (code in cut) == ((kind, architecture) in kept)


def test_all_that_gtpo_needs_is_there_or_carried_or_left_out_and_doctor_runs_without_that() -> None:
    machine = (SCRIPTS / "machine.txt").read_text()
    there = {re.split("[=<> ]", line)[0].lower() for line in machine.splitlines() if not line.startswith("#")}
    carried = {Requirement(line).name.lower() for line in pack.missing(machine)}
    needed = {requirement.name.lower().replace("_", "-") for requirement in requirements()}
    needed |= {requirement.name.lower().replace("_", "-") for requirement in requirements(extra="cuda")}
    assert needed - there - carried - set(pack.LEFT_OUT) == set()
    assert all(line in pack.missing(machine) for line in pack.ALSO)
    assert pack.ALSO[0] in (ROOT / "Makefile").read_text()
    blocked = "".join(f"sys.modules[{name.replace('-', '_')!r}] = None\n" for name in pack.LEFT_OUT)
    code = f"import sys\n{blocked}from gtpo_cli.cli.app import main\nsys.argv = ['gtpo', 'doctor']\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_part_fits_one_copy_beside_what_git_tracks() -> None:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this checkout has no git")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    tracked = sum(file.stat().st_size for file in files if file.is_file())
    assert tracked <= 16 * pack.MiB  # it goes along with every copy
    assert pack.PART + tracked <= 60 * pack.MiB


def wheel(folder: Path, name: str = "unsloth") -> Path:
    file, about = folder / f"{name}-1.5-py3-none-any.whl", f"{name}-1.5.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "version = '1.5'\n")
        archive.writestr(f"{name}/N=1,K=2.json", "{}")
        archive.writestr("studio/page.js", "//" * 5000)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return file


def test_the_parts_are_joined_and_installed_and_a_broken_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "PART", 600)
    monkeypatch.setattr(pack, "BLOCK", 3000)
    content, out, work = (tmp_path / name for name in ("content", "out", "work"))
    for folder in ("wheels", "apart", "own", "gtpo/scripts/gpu"):
        (content / folder).mkdir(parents=True)
    repacked = content / "wheels" / "unsloth-1.5-py3-none-any.whl"
    pack.repack(wheel(tmp_path), repacked, architecture=90)
    shutil.copy(wheel(tmp_path, "flashinfer_python"), content / "apart")
    (content / "gtpo/scripts/gpu/stages.py").write_text("import unsloth; print(unsloth.version)\n")
    (content / "gtpo/COMMIT").write_text("0123abc\n")
    parts = pack.pack(content, out)
    assert len(parts) >= 2
    assert max(part.stat().st_size for part in parts) <= 600
    command = [sys.executable, str(out / "campaign.py"), "--work", str(work), "--only", "others"]
    whole = parts[0].read_bytes()
    parts[0].write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    broken = subprocess.run(command, capture_output=True, text=True)
    assert broken.stderr == f"{parts[0]}: is missing or damaged; copy it again\n"
    parts[0].write_bytes(whole)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("joined and installed in ")
    assert lines[1:] == ["others: 9.0 minutes at most", "others: well"]
    assert (work / "results/others.log").read_text() == "1.5\n"
    assert not (work / "site/studio").exists()
    assert not (work / "site/flashinfer_python").exists()
    assert (work / "flashinfer/flashinfer_python/__init__.py").is_file()
    record = (work / "site/unsloth-1.5.dist-info/RECORD").read_text()
    assert "unsloth/__init__.py,sha256=" in record
    assert '"unsloth/N=1,K=2.json",sha256=' in record
    machine = json.loads((work / "results/machine.json").read_text())
    assert (machine["commit"], machine["versions"]["unsloth"]) == ("0123abc", "1.5")


def test_blocks_that_are_compressed_at_a_time_are_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "BLOCK", 1000)
    content, into = bytes(range(256)) * 50, io.BytesIO()
    pack.compress(io.BytesIO(content), into)
    assert into.getvalue().count(b"\xfd7zXZ\0") == 13
    assert lzma.decompress(into.getvalue()) == content


STAGES = """
import json, sys, time
from pathlib import Path
name, work, seconds = sys.argv[1], Path(sys.argv[3]), sys.argv[5]
figures = work / "results" / f"{name}.json"
figures.write_text(json.dumps({"figures": [{"name": "so far", "value": 1.0, "unit": ""}]}))
if name == "learns":
    raise SystemExit(3)
if name == "decode":
    time.sleep(600)
figures.write_text(json.dumps({"figures": [{"name": "all", "value": 2.0, "unit": " ".join(sys.argv[6:])}]}))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout/scripts/gpu"
    folder.mkdir(parents=True)
    shutil.copy(SCRIPTS / "campaign.py", folder)
    (folder / "stages.py").write_text(STAGES)
    return folder


def test_each_stage_has_its_own_limit_and_result_and_the_next_one_begins(checkout: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(checkout / "campaign.py"), "--here", "--work", str(tmp_path)]
    done = subprocess.run([*command, "--limit", "decode=0.04", "--", "--small"], capture_output=True, text=True)
    assert done.returncode == 1
    expected = ["contracts: well", "learns: failed", "decode: out of time", "full: well", "card24: well",
                "flashinfer: well", "head: well", "peers: well", "full16: well", "others: well"]  # fmt: skip
    assert [line for line in done.stdout.splitlines() if not line.endswith("at most")] == expected
    results = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "results").glob("*.json")}
    assert results.pop("machine")["versions"]["torch"] == version("torch")
    assert {name: result["ended"] for name, result in results.items()} == dict(line.split(": ") for line in expected)
    assert results["decode"]["figures"] == [{"name": "so far", "value": 1.0, "unit": ""}]
    assert 2 < results["decode"]["seconds"] < 60
    assert results["full"]["figures"] == [{"name": "all", "value": 2.0, "unit": "--small"}]
    again = subprocess.run([*command, "--only", "learns", "--only", "full"], capture_output=True, text=True)
    assert again.stdout.splitlines()[1:] == ["learns: failed", "full: ended well before"]
    assert len(list((tmp_path / "results").glob("learns*.json"))) == 2  # the earlier one is kept
    short = subprocess.run([*command, "--minutes", "0.01"], capture_output=True, text=True)
    assert short.returncode == 0
    rest = {name: "ended well before" if each["ended"] == "well" else "no time left" for name, each in results.items()}
    assert set(short.stdout.splitlines()) == {f"{name}: {what}" for name, what in rest.items()}
    cut = subprocess.run(
        [*command, "--minutes", "0.04", "--only", "decode", "--limit", "decode=0.06"], capture_output=True, text=True
    )
    assert cut.stdout.splitlines() == ["decode: 0.0 minutes at most", "decode: out of time"]


def test_a_campaign_is_watched_and_what_a_killed_one_left_is_ended(checkout: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(checkout / "campaign.py"), "--here", "--work", str(tmp_path)]
    metrics = tmp_path / "runs/gtpo/metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.write_text("{}\n")
    running = subprocess.Popen([*command, "--only", "decode"], stdout=subprocess.DEVNULL)
    result = tmp_path / "results/decode.json"
    try:
        watch = [*command, "--watch", "1", "--out", str(tmp_path / "out")]
        while not result.is_file():
            time.sleep(0.1)
        watched = subprocess.run(watch, capture_output=True, text=True, check=True)
        assert watched.stdout.splitlines()[-1] == "the campaign goes on"
        with tarfile.open(tmp_path / "out/results.tar.gz") as tar:
            assert {"results/decode.json", "results/decode.log", "results/gtpo-metrics.jsonl"} <= set(tar.getnames())
        second = subprocess.run(command, capture_output=True, text=True)
        assert "a campaign runs in" in second.stderr
    finally:
        running.kill()
        running.wait()
    stage = (tmp_path / "stage.pid").read_text()
    assert b"stages.py" in command_of(stage)  # it goes on
    ended = subprocess.run([*command[:2], "--here", "--work", str(tmp_path), "--only", "full"], check=True)
    assert ended.returncode == 0
    while command_of(stage):
        time.sleep(0.05)
    assert "ended" not in json.loads(result.read_text())


def command_of(process: str) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it is gone
        return b""


def test_the_rest_of_a_card_is_taken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    taken: list[tuple[int, str]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (140 * 2**30, 141 * 2**30))

    def zeros(size: int, *, dtype: torch.dtype, device: str) -> torch.Tensor:
        taken.append((size, device))
        return torch.empty(size, dtype=dtype, device="meta")

    monkeypatch.setattr(torch, "zeros", zeros)
    monkeypatch.setattr(sys, "argv", ["taken.py", "24"])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    runpy.run_path(str(SCRIPTS / "taken.py"), run_name="__main__")
    assert taken == [(116 * 2**30, "cuda")]
    assert capsys.readouterr().out == "116.0\n"


@pytest.mark.parametrize("installed", [True, False])
def test_flashinfer_is_on_in_its_stage_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "site")
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "0")
    started: list[tuple[str, str]] = []

    def train(self: stages.Campaign, *_: str) -> list[dict[str, float]]:
        started.append((os.environ["PYTHONPATH"], os.environ["VLLM_USE_FLASHINFER_SAMPLER"]))
        raise stages.CommandError("not here")

    monkeypatch.setattr(stages.Campaign, "train", train)
    (tmp_path / "results").mkdir()
    if installed:
        (tmp_path / "flashinfer/flashinfer").mkdir(parents=True)
        (tmp_path / "flashinfer/flashinfer/__init__.py").touch()
    campaign = stages.Campaign("flashinfer", tmp_path, stages.SMALL, tmp_path, None, [], None, 0.0)
    stages.flashinfer(campaign)
    assert started == ([(f"{tmp_path}/flashinfer:site", "1")] if installed else [])
    found = json.loads((tmp_path / "results/flashinfer.json").read_text())
    assert found["failed"] == (["a start with FlashInfer: not here"] if installed else [])
    assert found["notes"] == ([] if installed else ["FlashInfer is not installed here, so nothing was started."])


# -- what the stages stand on ------------------------------------------------------------------------------------------


def collect(docs: Path, *words: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "collect.py"), *map(str, words), "--docs", str(docs)]
    subprocess.run(command, check=True, capture_output=True)


def test_pages_and_table_are_written_from_the_results(tmp_path: Path) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    shutil.copytree(ROOT / "docs/gpu", docs / "gpu", ignore=shutil.ignore_patterns("nvidia-h200-*"))
    shutil.copy(ROOT / "docs/engines.md", docs)
    rates = {"train/accuracy_rate": 0.5, "train/strict_format_rate": 0.5, "entropy/mean": 0.3}
    curve = [{"step": step, "train/reward_mean": 0.1 * step} | rates for step in (1, 2, 3)]
    (results / "machine.json").write_text(json.dumps({
        "card": "NVIDIA H200", "driver": "580.1", "date": "2026-11-30", "commit": "0123456789abcdef",
        "versions": {"torch": "2.11.0", "gguf": None},
    }))  # fmt: skip
    learns = {
        "what": "a model learns", "ended": "out of time", "seconds": 540.0,
        "figures": [{"name": "a step", "value": 1.23456, "unit": "s"}],
        "tables": {"curve": curve, "scores": [{"score": "pass@1", "estimate": 0.25}, {"score": "a|b", "note": "x"}]},
        "commands": [{"command": "gtpo train", "seconds": 9.5, "code": 0}, {"command": "gtpo eval"}],
        "failed": ["export: ended with 1, not 0"],
    }  # fmt: skip
    (results / "learns.json").write_text(json.dumps(learns))
    (results / "decode.json").write_text(json.dumps({"figures": []}))  # the machine went away
    collect(docs, results)
    page = (docs / "gpu/nvidia-h200-2026-11-30.md").read_text()
    for line in (
        "torch 2.11.0. Driver 580.1. gtpo at `0123456789ab`.",
        "| learns | out of time | 540.0 | a model learns |",
        "| a step | 1.235 s |", "| pass@1 | 0.25 |  |", "| a\\|b |  | x |", "- `gtpo train`: 9.5 s, exit code 0",
        "- `gtpo eval`: cut off",
        "- export: ended with 1, not 0",
        "![Reward, accuracy, format and entropy of each step](nvidia-h200-2026-11-30.png)",
    ):  # fmt: skip
        assert line in page.splitlines()
    assert "| decode | cut off |" in page
    assert "| full |" not in page
    assert (docs / "gpu/nvidia-h200-2026-11-30.png").stat().st_size > 5000
    (row,) = (line for line in (docs / "engines.md").read_text().splitlines() if line.startswith("| H200 |"))
    link = "[2026-11-30](gpu/nvidia-h200-2026-11-30.md)"
    assert row == f"| H200 | nobody yet | {link}, out of time | {link}, cut off |{' nobody yet |' * 5}"

    (results / "learns.json").write_text(json.dumps(learns | {"ended": "well"}))  # the same card and day again
    (results / "decode.json").unlink()
    collect(docs, results)
    (results / "learns.json").write_text(json.dumps(learns | {"ended": "failed"}))
    collect(docs, results)
    stages = json.loads((docs / "gpu/nvidia-h200-2026-11-30.json").read_text())["stages"]
    assert {name: stage.get("ended") for name, stage in stages.items()} == {"learns": "well", "decode": None}


def test_the_pages_of_the_documentation_are_those_that_are_written(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs/gpu", tmp_path / "gpu", ignore=shutil.ignore_patterns("*.md"))
    shutil.copy(ROOT / "docs/engines.md", tmp_path)
    collect(tmp_path)
    for file in (tmp_path / "engines.md", *tmp_path.glob("gpu/*.md")):
        assert file.read_text() == (ROOT / "docs" / file.relative_to(tmp_path)).read_text(), file.name
