"""Check, before anything is created or loaded, whether a recipe can start on this machine.

`examine` is for `gtpo doctor` and reports everything. `resolve` runs first in `gtpo train`: it reports all problems
together, or returns the job.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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
from gtpo_cli.job import Engines, TrainingJob
from gtpo_cli.machine import installed as machine
from gtpo_cli.machine.installed import GPU_LIBRARIES, Finding
from gtpo_cli.machine.open_keys import LARGE, gpu_memory
from gtpo_cli.policy.engines import why_auto_is_slow
from gtpo_cli.policy.tiny import BUILTIN_PREFIX
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.data import GYM, is_task
from gtpo_cli.recipe.schema import AdvantagesRecipe, LossRecipe, TokenWeightsRecipe
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.terminal.signals import Waiting
from gtpo_cli.text import counted, some
from gtpo_cli.training.best import check_keep_best
from gtpo_cli.types import CodeName

if TYPE_CHECKING:
    from gtpo_cli.machine.resolve import Parts


def examine(recipe: Recipe | None, *, output_dir: Path) -> list[Finding]:
    """Check everything that training needs here, for the recipe, or for the built-in model without one.

    Loads torch and the reward plug-ins, and contacts the hub and wandb with a timeout.
    """
    from gtpo_cli.machine.resolve import Parts

    return [
        *machine.software(),
        *((machine.gpu(), *machine.gpu_libraries(set())) if recipe is None else _for_recipe(Parts(recipe))),
        machine.hub(),
        machine.wandb("auto" if recipe is None else recipe.tracking.wandb.mode),
        machine.disk(output_dir),
    ]


def problems_of(parts: Parts, *, resumed: bool = False) -> list[Finding]:
    """List the problems that keep a recipe from starting.

    Imports the reward plug-ins and prepares the data. `resumed`: skip the memory check, since the run fitted before.
    """
    findings = _for_recipe(
        parts,
        with_gpu=not parts.written.model.name.startswith(BUILTIN_PREFIX),
        with_memory=not (resumed or parts.by_trl),
        read_data=False,
        resumed=resumed,
    )
    return [finding for finding in findings if finding.state == "problem"]


def resolve(
    recipe: Recipe, *, force: bool = False, resumed: RunFolder | None = None, by_trl: bool = False,
    measures: Collection[str] | None = None, say: Callable[[str], None] = lambda text: None,
) -> TrainingJob:  # fmt: skip
    """Find all parts of a recipe's job, before weights load. `resumed`: the run that goes on. `measures`: as in
    `Parts`. `say` gets a line about the keys that the recipe leaves open.

    Raises NotReadyError with everything that keeps this recipe from starting here, and for a resumed run with other
    problems or other code of the user's own than it began with, unless `force`; then the first error of a part.
    """
    from gtpo_cli.machine.resolve import Parts

    parts = Parts(recipe, by_trl=by_trl, measures=measures)
    if not force and (problems := problems_of(parts, resumed=resumed is not None)):
        raise NotReadyError("\n".join(map(str, problems)))
    if parts.closed.words:
        say(parts.closed.words)
    if reason := why_auto_is_slow(parts.here):
        say(f"Unsloth and vLLM would be faster but are not used: {reason}")
    job = parts.training_job()
    if resumed is not None and not force and (differ := _what_differs(job, resumed)):
        raise NotReadyError(f"{resumed.path}: {differ}, or go on with what is there now: --force")
    if recipe.generates and recipe.rewards.plugins and measures is None:
        _try_rewards(job, say)
    return job


def _try_rewards(job: TrainingJob, say: Callable[[str], None]) -> None:
    """Call the user's own rewards once, on a made-up right answer, so that a fault shows before weights load."""
    from gtpo_cli.rewards import try_rewards

    problem, rewards = job.data.prompts[0][0], job.recipe.rewards
    made_up = job.encoder.reference(problem)
    with Waiting(say, "trying your own rewards on one made-up answer"):
        try_rewards(rewards, problem, made_up)


def _what_differs(job: TrainingJob, run: RunFolder) -> str | None:
    """Say what differs from what the run began with, and the remedy; None if nothing does."""
    began = run.beginning()
    if began is None:
        return None
    if changed := [name for name, digest in job.code_digests.items() if began.code.get(name, digest) != digest]:
        return f"{', '.join(changed)}: the code changed since the run began; put it back as it was"
    then, now = began.digests, job.problem_digests
    if list(then) == now:
        return None
    if len(then) != len(now):
        what = f"it began with {counted(len(then), 'problem')}, and now there are {len(now)}"
    else:
        other = [place for place, (before, after) in enumerate(zip(then, now, strict=True)) if before != after]
        first, _ = job.data.prompts[other[0]]
        differ = "differs" if len(other) == 1 else "differ"
        what = (
            f"{len(other)} of its {counted(len(now), 'problem')} {differ} from what it began with, in question or gold "
            f"answer; the first is {first.id}"
        )
    return f"{what}; put the data back as they were"


def _rules(recipe: Recipe) -> tuple[AdvantagesRecipe | TokenWeightsRecipe | LossRecipe, ...]:
    objective = recipe.objective
    return () if objective.name == "sft" else (objective.advantages, objective.token_weights, objective.loss)


def _check_rules(recipe: Recipe) -> None:
    """Run the objective's rules on a made-up step. Those of the library without keywords cannot be wrong."""
    sections = _rules(recipe)
    if any(section.config or isinstance(section.rule, CodeName) for section in sections):
        from gtpo_cli.training.setup import check_rules

        check_rules(recipe.objective)


def check_recipe(recipe: Recipe) -> list[str]:
    """Check a recipe for any machine, and return remarks on modules that are missing here but may be on another.

    Raises RecipeError for a recipe that works on no machine or whose rules fail, and RewardError or DataError for a
    reward, a task or a function in `data.gold` that is here but cannot be used. Columns that rewards need are checked
    only for tasks, since other data may be elsewhere.
    """
    check_keep_best(recipe)
    from gtpo_cli.data import load_problems
    from gtpo_cli.data.problems import any_gold
    from gtpo_cli.data.reading import own_gold
    from gtpo_cli.rewards import check_rewards
    from gtpo_cli.rewards.user_reward import load_plugin
    from gtpo_cli.runs.user_code import missing_module

    sources = recipe.data.sources
    tasks = [source for source in sources if is_task(source.benchmark)]
    code = {f"reward {plugin.name}": plugin.name for plugin in recipe.rewards.plugins}
    code |= {f"rule {section.rule}": section.rule for section in _rules(recipe) if isinstance(section.rule, CodeName)}
    code |= {f"data.gold: {source.gold}": source.gold for source in sources if isinstance(source.gold, CodeName)}
    code |= {f"task {source.benchmark}": source.benchmark for source in tasks if isinstance(source.benchmark, CodeName)}
    if any(source.benchmark.startswith(GYM) for source in tasks):
        code["tasks of reasoning-gym"] = "reasoning_gym:"
    absent = {name: missing for name, dotted in code.items() if (missing := missing_module(dotted))}
    for plugin in recipe.rewards.plugins:
        if f"reward {plugin.name}" not in absent:
            load_plugin(plugin.name)
    for source in sources:
        if isinstance(source.gold, CodeName) and f"data.gold: {source.gold}" not in absent:
            own_gold(source.gold, answer="", solution=None)
    if not any(name.startswith("rule") for name in absent):
        _check_rules(recipe)
    if not any(name.startswith("task") for name in absent):
        one = [source.model_copy(update={"limit": 1}) for source in tasks]
        first = [load_problems(source, seed=recipe.seed, is_usable=any_gold) for source in one]
        if recipe.rewards.plugins and len(tasks) == len(sources) and not absent:
            check_rewards(recipe.rewards, [problem for loaded in first for problem in loaded.problems])
    return [f"{name}: there is no module {module} here" for name, module in absent.items()]


def _for_recipe(
    parts: Parts, *, with_gpu: bool = True, with_memory: bool = True, read_data: bool = True, resumed: bool = False
) -> Iterator[Finding]:
    """Check GPU, resolved keys, engines and further needs of the recipe.

    `with_gpu`, `with_memory`: whether to check these; `read_data`: as in `memory_finding`.
    """
    here = parts.here
    if with_gpu:
        memory = gpu_memory()
        weights = 0 if memory is not None or parts.shape is None else parts.shape.parameters
        yield machine.gpu(weights, needed=parts.written.model.load_in_4bit is not False and weights >= LARGE)
        if with_memory and memory is not None:
            yield memory_finding(parts, memory, read_data=read_data)
    if parts.closed.words:
        yield Finding("open keys", "ok", parts.closed.words)
    yield from machine.gpu_libraries(_libraries_for(here))
    yield _choice(here, parts.closed.engines)
    yield from _adapter(parts)
    yield from _needs(parts, resumed=resumed)


def _adapter(parts: Parts) -> Iterator[Finding]:
    """Check that the model has the layers that get an adapter."""
    lora = parts.written.model.lora
    if lora is None or lora.target_modules == "all-linear" or parts.shape is None or parts.shape.counts is None:
        return
    layers = parts.shape.linear
    if unknown := [name for name in lora.target_modules if name not in layers]:
        said = f"model.lora.target_modules: no linear layer between embedding and output is called {some(unknown)}"
        yield Finding("adapter", "problem", said, f"it has {', '.join(sorted(layers))}, or all-linear for all of them")


def memory_finding(parts: Parts, gpu: float, *, read_data: bool = True) -> Finding:
    """Check by the plan whether the recipe fits a GPU of so many bytes, with the engines that are here.

    Without `read_data` this is immediate, and a problem only if not even the shortest prompts would fit.
    """
    from gtpo_cli.machine.fit import make_plan

    try:
        plan = make_plan(parts.here, gpu=gpu, engines=parts.engines, parts=parts, read_data=read_data)
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


def _needs(parts: Parts, *, resumed: bool = False) -> list[Finding]:
    """Check the files, names and code in a recipe. A resumed run has its starting weights in its folder."""
    needs: dict[str, Callable[[], str]] = {
        "recipe": lambda: _own_code(parts),
        "model": lambda: _model(parts, with_start=not resumed),
        "data": lambda: _data(parts),
    }
    found = []
    for subject, look in needs.items():
        try:
            found.append(Finding(subject, "ok", look()))
        except (CheckpointError, DataError, ModelError, RecipeError, RewardError) as error:
            found.append(Finding(subject, "problem", str(error)))
    if all(finding.state == "ok" for finding in found):
        try:
            parts.check_rewards()
        except RewardError as error:
            found.append(Finding("rewards", "problem", str(error)))
        found += [Finding("prompts", "note", note) for note in parts.encoder.notes]
    return found


def _own_code(parts: Parts) -> str:
    recipe = parts.written
    check_keep_best(recipe)
    if parts.measures is None:
        _check_rules(recipe)
    for plugin in recipe.rewards.plugins:
        from gtpo_cli.rewards.user_reward import load_plugin

        load_plugin(plugin.name)
    return "its rewards are there" if recipe.rewards.plugins else "no reward of its own"


def _model(parts: Parts, *, with_start: bool = True) -> str:
    """Check the model, fetching configuration and tokenizer but not the weights."""
    from gtpo_cli.policy.loading import damaged_file
    from gtpo_cli.training.start import weights_for

    model = parts.written.model
    if with_start:
        weights_for(model)
    name, path = model.name, parts.model.path
    if name.startswith(BUILTIN_PREFIX):
        return f"{name}, built in"
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


def _data(parts: Parts) -> str:
    """Prepare the data; without a tokenizer, check that each source has a usable problem."""
    recipe = parts.written
    try:
        _ = parts.model
    except ModelError:
        return check_data(recipe)
    _ = parts.data, parts.held_out
    return "; ".join(f"{s.benchmark}, made here" if is_task(s.benchmark) else s.name for s in recipe.data.sources)


def check_data(recipe: Recipe) -> str:
    """Check that each source has a usable problem, without reading a large file twice. Raises DataError."""
    from gtpo_cli.data import gold_check, load_problems

    names = []
    for source in recipe.data.sources:
        if is_task(source.benchmark):
            names.append(f"{source.benchmark}, made here")
            continue
        first = source.model_copy(update={"limit": 1})
        load_problems(first, seed=recipe.seed, is_usable=gold_check(recipe.rewards))
        names.append(source.name)
    return "; ".join(names)
