"""Can this recipe start here? What it needs, held against what the machine has, before anything is made or loaded.

`examine` is `gtpo doctor`: everything, good or bad. `check_ready` is what `gtpo train` does first: the problems among
it, all together.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from gtpo_cli.data.gold import own_gold
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
from gtpo_cli.models.dropout import check_dropout
from gtpo_cli.models.engines import Engines, choose_engines, on_transformers, why_auto_is_slow
from gtpo_cli.models.tiny import BUILTIN_PREFIX, resolve_name
from gtpo_cli.planning import machine
from gtpo_cli.planning.machine import GPU_LIBRARIES, Finding
from gtpo_cli.planning.open_keys import LARGE, close, gpu_memory
from gtpo_cli.planning.shapes import read_shape
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.data import GENERATED
from gtpo_cli.recipe.schema import ModelRecipe
from gtpo_cli.rewards.registry import load_plugin
from gtpo_cli.training.best import check_keep_best
from gtpo_cli.types import CodeName
from gtpo_cli.user_code import missing_module


def examine(recipe: Recipe | None, *, output_dir: Path) -> list[Finding]:
    """Everything that decides whether training can start here: for the recipe, or for the built-in model without one.

    Loads torch and the reward plug-ins; asks the hub and wandb, with a time limit.
    """
    return [
        *machine.software(),
        *((machine.gpu(), *machine.gpu_libraries(set())) if recipe is None else _for_recipe(recipe)),
        machine.hub(),
        machine.wandb("auto" if recipe is None else recipe.tracking.wandb.mode),
        machine.disk(output_dir),
    ]


def problems_of(recipe: Recipe, *, resumed: bool = False, by_trl: bool = False) -> list[Finding]:
    """What keeps this recipe from starting here. Less than a tenth of a second for a built-in model on its own task.

    Imports the reward plug-ins. `resumed`: memory was enough before, whatever the plan says. `by_trl`: TRL's trainer,
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
    """Remarks on what a recipe needs that can be seen on any machine: reward modules may be on another.

    Raises RecipeError for what works on no machine, RewardError and DataError for a reward and a function of
    `data.gold` that are here and cannot be imported. The columns that rewards ask for are checked where the task is
    generated: other data need not be here.
    """
    check_keep_best(recipe)
    check_dropout(recipe)
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
    """The GPU for the recipe, what its open keys and its engines come to here, and what it then needs. `with_gpu`,
    `with_memory`: whether these are looked at; `read_data`: as in `memory_finding`."""
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
    """Of a recipe's model; 0 where that is not known."""
    try:
        return read_shape(model)[0].parameters
    except ModelError:
        return 0


def memory_finding(
    recipe: Recipe, gpu: float, engines: Engines | ModelError | None = None, *, read_data: bool = True
) -> Finding:
    """Whether the recipe fits a GPU of so many bytes, by the plan. `engines`: as they are here, or why there are none.

    Without `read_data` at once, and a problem only where not even the shortest prompts would fit.
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
    """Those of the GPU path that the recipe names."""
    needed = {str(recipe.model.backend), str(recipe.rollout.engine)} & GPU_LIBRARIES.keys()
    if recipe.model.load_in_4bit or recipe.optimizer.name != "adamw":
        needed.add("bitsandbytes")
    if recipe.model.load_in_4bit and "vllm" in needed and importlib.util.find_spec("vllm") is None:
        needed.add("vllm-bnb-plugin")  # with vLLM there, `_choice` says it
    return needed


def _choice(recipe: Recipe, engines: Engines | ModelError) -> Finding:
    """What the recipe's backend and engine come to here."""
    if isinstance(engines, ModelError):
        return Finding("engines", "problem", str(engines))
    if reason := why_auto_is_slow(recipe):
        command = f": {install('cuda')}" if "not installed" in reason else ""
        remedy = f"sampling is slower without them{command}"
        return Finding("engines", "note", f"{engines}; Unsloth and vLLM are not used: {reason}", remedy)
    return Finding("engines", "ok", str(engines))


def _needs(recipe: Recipe, *, resumed: bool = False) -> Iterator[Finding]:
    """The files, names and code that a recipe mentions. A resumed run has what it started from in its folder."""
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
    check_dropout(recipe)
    for plugin in recipe.rewards.plugins:
        load_plugin(plugin.name)
    return "its rewards are there" if recipe.rewards.plugins else "no reward of its own"


def _model(model: ModelRecipe, *, with_start: bool = True) -> str:
    """Configuration and tokenizer are fetched, the weights are not."""
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
    """The first problem of each source that can be used, so that a large file is not read twice. Raises DataError."""
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
