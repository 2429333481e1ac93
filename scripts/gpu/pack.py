"""Collect what a GPU machine without a network lacks to run the campaign, in parts that can be copied one by one.

    python scripts/gpu/pack.py              (make gpu-pack; everything lies in build/gpu then)

The parts hold this checkout as committed, the wheels of constraints-cuda.txt that the machine lacks, cut to what its
card runs, a real model (SmolLM2-135M-Instruct, as downloaded), and data and tokenizers of ../shared. Downloads stay in
build/gpu/cache and are not asked for again. The wheel of gtpo is built anew each time: pip fetches hatchling for that.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "scripts/models")]

import fatbin  # noqa: E402
import real_model  # noqa: E402

MiB = 2**20
PART = 44 * MiB  # a copy may take 64 MiB, and brings along the checkout's tracked files (14.8 MiB)
BLOCK = 16 * MiB  # compressed at a time by each thread
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)),
             *(f"manylinux{year}_x86_64" for year in (2014, 2010, 1)))  # fmt: skip
ALSO = ("gguf==0.19.0",)  # reads the model's file; the Makefile has the same version
# Large, and nothing in the campaign needs them.
LEFT_OUT = {
    "xformers": "built for another torch; vLLM and Unsloth use flash attention",
    "torchao": "built for another torch; for weights in FP8",
    "torchcodec": "for sound and video", "pynvvideocodec": "for video", "diffusers": "for pictures",
    "tilelang": "kernels of models that the campaign has not", "z3-solver": "tilelang's",
    "tokenspeed-mla": "kernels of models that the campaign has not", "tokenspeed-triton": "tokenspeed-mla's",
    "nccl-extensions": "for several GPUs", "nccl4py": "for several GPUs",
    "instanttensor": "another loader of weights", "hf-transfer": "for downloads", "wandb": "for uploads",
}  # fmt: skip
# Of the checkout, by git's words.
WITHOUT = (":(exclude)docs", ":(exclude)scripts/claims")
# Only one stage finds it, since vLLM's start differs where it is installed.
APART = "flashinfer-python"
# Of wheels, what the campaign does not need: code for other cards and systems, and pages in a browser.
NOT_NEEDED = {
    "vllm": r"vllm/vllm_flash_attn/_vllm_fa2_C|vllm/vllm-rs|vllm/third_party/(deep_gemm|fmha_sm100)/"
            r"|vllm/_(deepselect|qutlass|flashkda)_C",
    "bitsandbytes": r"bitsandbytes/libbitsandbytes_(rocm|xpu|cuda(?!130))",
    "unsloth": r"studio/",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parent
    parser.add_argument("--have", type=Path, default=here / "machine.txt", help="what it has: pip freeze there")
    parser.add_argument("--python", default="3.12", help="its Python (default: 3.12)")
    parser.add_argument("--capability", default="9.0", help="its card's compute capability (default: 9.0, an H100)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu", help="default: build/gpu")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="data and tokenizers")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        content = Path(temporary)
        cache = arguments.out / "cache"
        wheels = download(missing(arguments.have.read_text(encoding="utf-8")), cache, python=arguments.python)
        for folder in ("wheels", "apart"):
            (content / folder).mkdir()
        for wheel in [*wheels, own_wheel(content)]:
            folder = "apart" if name_of(wheel) == APART else "wheels"
            repack(wheel, content / folder / wheel.name, architecture=int(arguments.capability.replace(".", "")))
        add_checkout(content / "gtpo")
        add_model(content / "model.gguf", cache)
        add_shared(content / "shared", arguments.shared)
        parts = pack(content, arguments.out / "parts")
    for part in parts:
        print(f"{part.stat().st_size / MiB:6.1f} MiB  {part}")
    total = sum(part.stat().st_size for part in parts) / MiB
    print(f"{len(parts)} parts, {total:.0f} MiB, in {time.monotonic() - started:.0f} s; then: scripts/gpu/README.md")
    return 0


def missing(have: str) -> list[str]:
    """ALSO, and the lines of constraints-cuda.txt for what the machine does not have. Versions are not compared: gtpo
    and the libraries ran with those of machine.txt, except that PEFT has to be newer."""
    found = re.findall(r"^[A-Za-z0-9][\w.-]*", have, re.MULTILINE)
    there = {canonicalize_name(name) for name in found} - {"peft"}
    wanted = list(ALSO)
    for line in (ROOT / "constraints-cuda.txt").read_text(encoding="utf-8").splitlines():
        if not line[:1].isalnum():
            continue
        requirement = Requirement(line.partition("#")[0])
        name = canonicalize_name(requirement.name)
        if name not in there and name not in LEFT_OUT and not name.startswith("nvidia-"):
            wanted.append(str(requirement))
    return wanted


def download(wanted: list[str], cache: Path, *, python: str) -> list[Path]:
    """The wheels. pip asks the index for those that are not in the cache, and only for those."""
    cache.mkdir(parents=True, exist_ok=True)
    if lacking := [line for line in wanted if _cached(line, cache, python) is None]:
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms,
            "--dest", str(cache), *lacking,
        ]  # fmt: skip
        if subprocess.run(command, check=False).returncode:
            sys.exit("pip cannot fetch these wheels; its message is above")
    wheels = {line: _cached(line, cache, python) for line in wanted}
    if absent := [line for line, wheel in wheels.items() if wheel is None]:
        sys.exit(f"no wheel in {cache} fits this Python: {', '.join(absent)}")
    return sorted(wheel for wheel in wheels.values() if wheel is not None)


def _cached(line: str, cache: Path, python: str) -> Path | None:
    """One wheel in the cache for this requirement and the machine's Python: the most specific one, as pip chooses."""
    requirement = Requirement(line)
    version = tuple(map(int, python.split(".")))
    own = cpython_tags(version, platforms=PLATFORMS)
    tags = [*own, *compatible_tags(version, f"cp{python.replace('.', '')}", PLATFORMS)]
    rank = {tag: place for place, tag in enumerate(tags)}
    fitting = []
    for wheel in cache.glob("*.whl"):
        name, found, _, of_wheel = parse_wheel_filename(wheel.name)
        places = [rank[tag] for tag in of_wheel if tag in rank]
        same = name == canonicalize_name(requirement.name) and requirement.specifier.contains(found, prereleases=True)
        if same and places:
            fitting.append((min(places), wheel))
    return min(fitting, default=(0, None))[1]


def own_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(folder / "own"), str(ROOT)], check=True)
    (wheel,) = (folder / "own").glob("*.whl")
    return wheel


def name_of(wheel: Path) -> str:
    return canonicalize_name(wheel.name.partition("-")[0])


def repack(wheel: Path, into: Path, *, architecture: int) -> None:
    """The wheel without what is not needed, not compressed (all parts are), its RECORD in order."""
    out = re.compile(NOT_NEEDED.get(name_of(wheel), r"(?!)"))
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as target:
        written = io.StringIO()
        record = csv.writer(written, lineterminator="\n")  # a file's name may have commas
        for member in source.infolist():
            if out.match(member.filename) or member.filename.endswith(".dist-info/RECORD"):
                continue
            data = source.read(member)
            if member.filename.endswith(".so"):
                data = fatbin.cut(data, architecture)
            target.writestr(member, data, compress_type=zipfile.ZIP_STORED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.writerow([member.filename, f"sha256={digest}", len(data)])
        (place,) = (n for n in source.namelist() if n.endswith(".dist-info/RECORD"))
        record.writerow([place, "", ""])
        target.writestr(place, written.getvalue())


def add_checkout(into: Path) -> None:
    """What is committed, without pages and what make claims has: tests and recipes run from it. COMMIT is for the
    results."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", "-C", str(ROOT), *words], stdout=subprocess.PIPE, check=True).stdout

    into.mkdir()
    if git("status", "--porcelain", "--untracked-files=no"):
        print("there are changes that are not committed: they stay here")
    subprocess.run(["tar", "-x", "-C", str(into)], input=git("archive", "HEAD", *WITHOUT), check=True)
    (into / "COMMIT").write_bytes(git("rev-parse", "HEAD"))


def add_model(into: Path, cache: Path) -> None:
    stored = cache / "model.gguf"
    if not stored.is_file():
        with tempfile.TemporaryDirectory() as temporary:
            shutil.move(real_model.fetch(Path(temporary)), stored)
    shutil.copyfile(stored, into)


def add_shared(into: Path, shared: Path) -> None:
    for name in ("data/gsm8k", "models/tokenizers/llama-3.1"):
        if (shared / name).is_dir():
            shutil.copytree(shared / name, into / name)
        else:
            print(f"{shared / name} is not here; the stages that need it will say so")


def pack(content: Path, out: Path) -> list[Path]:
    """One compressed archive cut into parts, their checksums, and the program that joins them."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.rmtree(content / "own")
    with tempfile.TemporaryFile() as archive, tempfile.TemporaryFile() as compressed:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(content, arcname=".")
        archive.seek(0)
        compress(archive, compressed)
        compressed.seek(0)
        parts: list[Path] = []
        while block := compressed.read(PART):
            parts.append(out / f"part-{len(parts):02d}")
            parts[-1].write_bytes(block)
    sums = "".join(f"{hashlib.sha256(part.read_bytes()).hexdigest()}  {part.name}\n" for part in parts)
    (out / "SHA256SUMS").write_text(sums, encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name("campaign.py"), out / "campaign.py")
    return parts


def compress(archive: IO[bytes], into: IO[bytes]) -> None:
    """Block by block, on all processors. Each block is a whole file of xz; one after the other they are one too."""
    processors = os.cpu_count() or 1
    with ThreadPoolExecutor(processors) as pool:
        while blocks := [block for _ in range(processors) if (block := archive.read(BLOCK))]:
            for done in pool.map(lambda block: lzma.compress(block, preset=2), blocks):
                into.write(done)


if __name__ == "__main__":
    sys.exit(main())
