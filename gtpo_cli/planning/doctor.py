"""Looking over a machine before a run: what is there, what is missing, and the remedy of each."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from gtpo_cli.errors import ModelError
from gtpo_cli.recipe import Recipe

State = Literal["ok", "note", "problem"]
_SECONDS = 5.0  # for a host to answer
_ENOUGH_DISK = 20 * 2**30  # checkpoints of an 8B model's adapter and optimiser, with the model in the cache


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `problem`: training cannot start; `note`: it can, but see `remedy`."""

    subject: str
    state: State
    words: str
    remedy: str = ""


def examine(recipe: Recipe | None, *, output_dir: Path) -> list[Finding]:
    """Everything that decides whether training can start here: for the recipe, or for the built-in model without one.

    Loads torch; asks the hub and wandb once each, with a time limit.
    """
    return [
        *_software(),
        *_gpu(recipe),
        *_engines(recipe),
        *_choice(recipe),
        _hub(recipe),
        _wandb(recipe),
        _disk(output_dir),
    ]


def _software() -> Iterator[Finding]:
    yield Finding("python", "ok", platform.python_version())
    for requirement in _requirements(extra=None):
        if requirement.name.lower() in ("torch", "transformers", "peft", "datasets"):
            yield _package(requirement, needed=True)


def _gpu(recipe: Recipe | None) -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        memory = properties.total_memory / 2**30
        words = f"{properties.name}, {memory:.0f} GiB, compute capability {properties.major}.{properties.minor}"
        yield Finding("GPU", "ok", f"{words}, CUDA {torch.version.cuda}, driver {_driver() or 'unknown'}")
        if recipe is not None:
            yield memory_finding(recipe, properties.total_memory)
        return
    driver = _driver()
    if driver and torch.version.cuda is None:
        words, remedy = f"a driver ({driver}), but torch is a CPU build", "install a CUDA build of torch"
    elif driver:
        words, remedy = f"driver {driver} and torch for CUDA {torch.version.cuda} find no GPU", "update the driver"
    else:
        words, remedy = "none", "the built-in model trains on a CPU; an 8B model needs a GPU of 24 GB or more"
    needs = recipe is not None and recipe.model.load_in_4bit and not recipe.model.name.startswith("builtin:")
    yield Finding("GPU", "problem" if needs else "note", words, remedy)


def memory_finding(recipe: Recipe, gpu: float) -> Finding:
    """Whether the recipe fits a GPU of so many bytes, by the plan."""
    from gtpo_cli.planning.plan import make_plan

    try:
        plan = make_plan(recipe, gpu=gpu)
    except ModelError as error:
        return Finding("memory", "note", f"not known: {error}")
    words = f"{plan.memory.peak / 2**30:.1f} GiB needed of {gpu / 2**30:.0f}"
    if plan.fits:
        return Finding("memory", "ok", f"{words}; gtpo plan says for what")
    remedy = "gtpo plan says for what; shorter completions, a smaller adapter, or another gpu_memory_utilization"
    return Finding("memory", "problem", words, remedy)


def _engines(recipe: Recipe | None) -> Iterator[Finding]:
    wanted: set[str] = set()
    if recipe is not None:
        wanted = {recipe.model.backend, recipe.rollout.engine}
        if recipe.model.load_in_4bit or recipe.optimizer.name != "adamw":
            wanted.add("bitsandbytes")
    for requirement in _requirements(extra="cuda"):
        yield _package(requirement, needed=requirement.name.lower() in wanted)


def _choice(recipe: Recipe | None) -> Iterator[Finding]:
    """What the recipe's backend and engine come to here."""
    if recipe is None:
        return
    from gtpo_cli.models import choose_engines

    try:
        yield Finding("engines", "ok", str(choose_engines(recipe)))
    except ModelError as error:
        yield Finding("engines", "problem", str(error))


def _hub(recipe: Recipe | None) -> Finding:
    from huggingface_hub import constants

    needs = recipe is not None and not recipe.model.name.startswith("builtin:") and not Path(recipe.model.name).exists()
    remedy = "without it: model.name and data.path as local folders, or a filled cache and HF_HUB_OFFLINE=1"
    if constants.HF_HUB_OFFLINE:
        return Finding("hub", "note", "HF_HUB_OFFLINE is set: only what is in the cache", remedy if needs else "")
    if _answers(constants.ENDPOINT):
        return Finding("hub", "ok", "reachable")
    return Finding("hub", "problem" if needs else "note", "cannot be reached", remedy)


def _wandb(recipe: Recipe | None) -> Finding:
    import wandb

    mode = recipe.tracking.wandb.mode if recipe is not None else "auto"
    if mode == "off":
        return Finding("wandb", "ok", "off in the recipe")
    settings = wandb.Settings()
    key = settings.api_key or _netrc_has(settings.base_url)
    if not key:
        state: State = "problem" if mode == "online" else "note"
        return Finding("wandb", state, "no key: runs are logged offline", "wandb login; or tracking.wandb.mode: off")
    if _answers(settings.base_url):
        return Finding("wandb", "ok", "key found, reachable")
    return Finding("wandb", "note", "key found, but it cannot be reached", "runs can be synchronised later: wandb sync")


def _disk(output_dir: Path) -> Finding:
    there = output_dir.resolve()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    words = f"{free / 2**30:.0f} GiB free at {output_dir}"
    if free >= _ENOUGH_DISK:
        return Finding("disk", "ok", words)
    return Finding("disk", "note", words, "an 8B run needs about 20 GiB; output_dir may name another disk")


def _requirements(*, extra: str | None) -> Iterator[Requirement]:
    """gtpo's own requirements: those of an extra, or those that always hold."""
    for line in metadata.requires("gtpo_cli") or ():
        requirement = Requirement(line)
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if always if extra is None else not always and requirement.marker.evaluate({"extra": extra}):  # type: ignore[union-attr]
            yield requirement


def _package(requirement: Requirement, *, needed: bool) -> Finding:
    name = requirement.name
    missing: State = "problem" if needed else "note"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if not needed:
            return Finding(name, "note", "not installed: only needed for GPU recipes", "pip install 'gtpo_cli[cuda]'")
        return Finding(name, "problem", "not installed", f"pip install '{name}{requirement.specifier}'")
    if requirement.specifier.contains(version, prereleases=True):
        return Finding(name, "ok", version)
    return Finding(
        name, missing, f"{version}, not {requirement.specifier}", f"pip install '{name}{requirement.specifier}'"
    )


def _driver() -> str | None:
    """The NVIDIA driver's version, None where there is no driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    done = subprocess.run(
        [command, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
    )
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def _answers(url: str) -> bool:
    import httpx

    try:
        httpx.head(url, timeout=_SECONDS, follow_redirects=True)
    except httpx.HTTPError:
        return False
    return True


def _netrc_has(url: str) -> bool:
    import netrc
    from urllib.parse import urlparse

    try:
        return netrc.netrc().authenticators(urlparse(url).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
