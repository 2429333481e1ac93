"""Check, before anything is created or loaded, whether a recipe can start on this machine.

`examine` is for `gtpo doctor` and reports everything. `check_ready` runs first in `gtpo train` and reports all problems
together.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from gtpo_cli.errors import (
    CheckpointError,
    DataError,
    ModelError,
    NotReadyError,
    RecipeError,
    RewardError,
    install,
    program,
)
from gtpo_cli.hub import cached_snapshot, missing_weights, offline_remedy, why_unreachable
from gtpo_cli.models.engines import Engines, choose_engines, on_transformers, why_auto_is_slow
from gtpo_cli.models.tiny import BUILTIN_PREFIX, resolve_name
from gtpo_cli.planning import machine
from gtpo_cli.planning.machine import GPU_LIBRARIES, Finding
from gtpo_cli.planning.open_keys import LARGE, close, gpu_memory
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.data import GENERATED
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.training.best import check_keep_best
from gtpo_cli.types import CodeName


def examine(recipe: Recipe | None, *, output_dir: Path) -> list[Finding]:
    """Check everything that training needs here, for the recipe, or for the built-in model without one.

    Loads torch and the reward plug-ins, and contacts the hub and wandb with a timeout.
    """
    return [
        *machine.software(),
        *((machine.gpu(), *machine.gpu_libraries(set())) if recipe is None else _for_recipe(recipe)),
        machine.hub(),
        machine.wandb("auto" if recipe is None else recipe.tracking.wandb.mode),
        machine.disk(output_dir),
    ]


def problems_of(recipe: Recipe, *, resumed: bool = False, by_trl: bool = False) -> list[Finding]:
    """List the problems that keep this recipe from starting. A built-in model on its own task takes under 0.1 s.

    Imports the reward plug-ins. `resumed`: skip the memory check, since the run fitted before. `by_trl`: TRL's trainer,
    which holds the policy on transformers.
    """
    findings = _for_recipe(
        on_transformers(recipe) if by_trl else recipe,
        with_gpu=not recipe.model.name.startswith(BUILTIN_PREFIX),
        with_memory=not (resumed or by_trl),
        read_data=False,
        resumed=resumed,
    )
    return [finding for finding in findings if finding.state == "problem"]


def check_ready(recipe: Recipe, *, resumed: bool = False, by_trl: bool = False) -> None:
    """Raise NotReadyError with everything that keeps this recipe from starting here; imports its reward plug-ins."""
    if problems := problems_of(recipe, resumed=resumed, by_trl=by_trl):
        raise NotReadyError("\n".join(map(str, problems)))


def check_recipe(recipe: Recipe) -> list[str]:
    """Check a recipe for any machine, and return remarks on modules that are missing here but may be on another.

    Raises RecipeError for a recipe that works on no machine, and RewardError or DataError for a reward or a function in
    `data.gold` that is here but cannot be imported. Columns that rewards need are checked only for generated tasks,
    since other data may be elsewhere.
    """
    check_keep_best(recipe)
    from gtpo_cli.data.gold import own_gold
    from gtpo_cli.rewards.registry import load_plugin
    from gtpo_cli.user_code import missing_module

    loaders: dict[str, Callable[[], object]] = {
        f"reward {plugin.name}": partial(load_plugin, plugin.name) for plugin in recipe.rewards.plugins
    }
    for source in recipe.data.sources:
        if isinstance(source.gold, CodeName):
            loaders[f"data.gold: {source.gold}"] = partial(own_gold, source.gold, answer="", solution=None)
    absent = {name: missing_module(name.partition(" ")[2]) for name in loaders}
    for name, load in loaders.items():
        if absent[name] is None:
            load()
    sources = recipe.data.sources
    if recipe.rewards.plugins and not any(absent.values()) and all(one.benchmark in GENERATED for one in sources):
        from gtpo_cli.data import load_problems
        from gtpo_cli.rewards import check_columns

        first = [load_problems(source.model_copy(update={"limit": 1}), seed=recipe.seed) for source in sources]
        check_columns(recipe.rewards, [problem for loaded in first for problem in loaded.problems])
    return [f"{name}: there is no module {module} here" for name, module in absent.items() if module]


def _for_recipe(
    recipe: Recipe, *, with_gpu: bool = True, with_memory: bool = True, read_data: bool = True, resumed: bool = False
) -> Iterator[Finding]:
    """Check GPU, resolved keys, engines and further needs of the recipe.

    `with_gpu`, `with_memory`: whether to check these; `read_data`: as in `memory_finding`.
    """
    left_open = close(recipe)
    here = recipe.with_values(left_open.values)
    engines: Engines | ModelError
    try:
        engines = choose_engines(here)
    except ModelError as error:
        engines = error
    if with_gpu:
        memory = gpu_memory()
        weights = _weights(recipe.model) if memory is None else 0
        yield machine.gpu(weights, needed=recipe.model.load_in_4bit is not False and weights >= LARGE)
        if with_memory and memory is not None:
            yield memory_finding(here, memory, engines, read_data=read_data)
    if left_open.words:
        yield Finding("open keys", "ok", left_open.words)
    yield from machine.gpu_libraries(_libraries_for(here))
    yield _choice(here, engines)
    yield from _needs(here, resumed=resumed)


def _weights(model: ModelRecipe) -> int:
    """Return the number of weights of a recipe's model; 0 if unknown."""
    from gtpo_cli.planning.shapes import read_shape

    try:
        return read_shape(model)[0].parameters
    except ModelError:
        return 0


def memory_finding(
    recipe: Recipe, gpu: float, engines: Engines | ModelError | None = None, *, read_data: bool = True
) -> Finding:
    """Check by the plan whether the recipe fits a GPU of so many bytes. `engines`: those here, or why there are none.

    Without `read_data` this is immediate, and a problem only if not even the shortest prompts would fit.
    """
    from gtpo_cli.planning.fit import make_plan

    try:
        if isinstance(engines, ModelError):
            raise engines
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


def _libraries_for(recipe: Recipe) -> set[str]:
    """Return the GPU libraries that the recipe names."""
    needed = {str(recipe.model.backend), str(recipe.rollout.engine)} & GPU_LIBRARIES.keys()
    if recipe.model.load_in_4bit or recipe.optimizer.name != "adamw":
        needed.add("bitsandbytes")
    if recipe.model.load_in_4bit and "vllm" in needed and importlib.util.find_spec("vllm") is None:
        needed.add("vllm-bnb-plugin")  # if vLLM is installed, `_choice` reports it
    return needed


def _choice(recipe: Recipe, engines: Engines | ModelError) -> Finding:
    """Report the backend and engine that the recipe would use here."""
    if isinstance(engines, ModelError):
        return Finding("engines", "problem", str(engines))
    if reason := why_auto_is_slow(recipe):
        command = f": {install('cuda')}" if "not installed" in reason else ""
        remedy = f"sampling is slower without them{command}"
        return Finding("engines", "note", f"{engines}; Unsloth and vLLM are not used: {reason}", remedy)
    return Finding("engines", "ok", str(engines))


def _needs(recipe: Recipe, *, resumed: bool = False) -> Iterator[Finding]:
    """Check the files, names and code in a recipe. A resumed run has its starting weights in its folder."""
    needs: dict[str, Callable[[], str]] = {
        "recipe": lambda: _rewards(recipe),
        "model": lambda: _model(recipe.model, with_start=not resumed),
        "data": lambda: check_data(recipe),
    }
    for subject, look in needs.items():
        try:
            yield Finding(subject, "ok", look())
        except (CheckpointError, DataError, ModelError, RecipeError, RewardError) as error:
            yield Finding(subject, "problem", str(error))


def _rewards(recipe: Recipe) -> str:
    check_keep_best(recipe)
    for plugin in recipe.rewards.plugins:
        from gtpo_cli.rewards.registry import load_plugin

        load_plugin(plugin.name)
    return "its rewards are there" if recipe.rewards.plugins else "no reward of its own"


def _model(model: ModelRecipe, *, with_start: bool = True) -> str:
    """Check the model, fetching configuration and tokenizer but not the weights."""
    from gtpo_cli.models.loading import damaged_file, load_config, load_tokenizer
    from gtpo_cli.training.start import weights_for

    if with_start:
        weights_for(model)
    name, path = model.name, resolve_name(model.name)
    if name.startswith(BUILTIN_PREFIX):
        return f"{name}, built in"
    load_config(model, path)
    load_tokenizer(model, path)
    if Path(path).is_dir():
        if damaged := damaged_file(Path(path)):
            raise ModelError(f"model.name: {damaged}")
        return f"{name}, a folder"
    snapshot = cached_snapshot(name, model.revision)
    lacks = missing_weights(snapshot) if snapshot is not None else "model.safetensors"
    if lacks is None:
        return f"{name}, in the cache"
    if reason := why_unreachable():
        raise ModelError(
            f"model.name: of {name} the cache has no {lacks}, and the hub was not asked ({reason}); {offline_remedy()}"
        )
    return f"{name}, which will be downloaded ({program('hf')} download {name})"


def check_data(recipe: Recipe) -> str:
    """Check that each source has a usable problem, without reading a large file twice. Raises DataError."""
    from gtpo_cli.data import gold_check, load_problems

    names = []
    for source in recipe.data.sources:
        if source.benchmark in GENERATED:
            names.append(f"{source.benchmark}, made here")
            continue
        first = source.model_copy(update={"limit": 1})
        load_problems(first, seed=recipe.seed, is_usable=gold_check(recipe.rewards))
        names.append(source.name)
    return "; ".join(names)
