"""Resolve the keys in OPEN that a recipe leaves at `auto`, by the machine and the model's size, when a run is set up.

| key | value |
|---|---|
| `model.dtype` | bfloat16 on a GPU that has it, else float32 |
| `model.load_in_4bit` | true for a billion weights or more under an adapter, on a GPU with bitsandbytes |
| `optimizer.name` | paged_adamw_8bit for a billion weights or more on a GPU with bitsandbytes, else adamw |
| `model.gradient_checkpointing` | false if training without it takes at most half of the GPU's or the main memory |
| `rollout.gpu_memory_utilization` | 0.4; more if a shared engine then samples a step at once and everything fits |
| `rollout.max_num_seqs` | the completions in flight, if the cache holds them at a fifth of the greatest length |
| `rollout.standby` | never if training and a shared engine that is awake take at most 0.85 of the GPU, else always |

Memory is estimated as in `gtpo plan`, at the recipe's longest prompt and completion, without reading data. A model of
unknown size counts as large; a copy stored in 4 bits stays in 4 bits. The recipe in a run's folder has the values of
the keys that change its numbers, so another machine does not change them; it decides the others anew. The last two stay
open unless vLLM samples.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gtpo_cli.errors import ModelError, install
from gtpo_cli.job import Engines
from gtpo_cli.policy.engines import LIBRARIES, choose_engines, gpu_capability, installed_libraries
from gtpo_cli.policy.tiny import BUILTIN_PREFIX
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import BFLOAT16, OPEN, PAPER_SHARE

if TYPE_CHECKING:
    from gtpo_cli.machine.installed import Card
    from gtpo_cli.machine.shapes import ModelShape

LARGE = 10**9  # weights; smaller models do not need 4 bits, and a CPU trains them in acceptable time
QUANTISES = "bitsandbytes"
_SHARE, _SEQUENCES, _STANDBY = "rollout.gpu_memory_utilization", "rollout.max_num_seqs", "rollout.standby"
AWAKE = 0.85  # of the GPU's memory, for training beside an awake engine, as the plan is only an estimate
MOST_SEQUENCES = 512  # in flight at once; vLLM's CUDA graphs end there
_SHARES = tuple(percent / 100 for percent in range(45, 95, 5))  # of the GPU, for the sampling engine
_MEASURING_SHARE = 0.85  # the most in measuring
_CGROUP = Path("/sys/fs/cgroup/memory.max")  # of a container


class Machine(NamedTuple):
    """A machine for training.

    `memory`: bytes of GPU memory, or of main memory without a GPU. `capability`: the GPU's compute capability, None
    without one. `libraries`: the installed ones of LIBRARIES and QUANTISES.
    """

    memory: float
    capability: tuple[int, int] | None
    libraries: frozenset[str]

    @property
    def quantises(self) -> bool:
        return self.capability is not None and QUANTISES in self.libraries

    def __str__(self) -> str:
        if self.capability is None:
            return f"no GPU, {self.memory / 2**30:.0f} GiB of memory"
        without = "" if self.quantises else f" without bitsandbytes ({install('bnb')})"
        return f"a GPU of {self.memory / 2**30:.4g} GiB{without}"


def this_machine() -> Machine:
    here = {QUANTISES} if importlib.util.find_spec(QUANTISES) is not None else set()
    return Machine(gpu_memory() or main_memory(), gpu_capability(), frozenset(installed_libraries() | here))


def gpu_memory() -> float | None:
    """Return the bytes of this machine's GPU; None without one."""
    import torch

    return float(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def machine_with(gpu: Card | float) -> Machine:
    """Return a machine with this card, or a recent GPU of so many bytes, and with all libraries."""
    memory, capability = (gpu, BFLOAT16) if isinstance(gpu, (int, float)) else (gpu.memory, gpu.capability)
    return Machine(memory, capability, frozenset((*LIBRARIES, QUANTISES)))


def main_memory() -> float:
    """Return the bytes of main memory of this machine or container."""
    physical = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = _CGROUP.read_text().strip() if _CGROUP.is_file() else ""
    return min(physical, float(limit)) if limit.isdigit() else physical


class Closed(NamedTuple):
    """Resolved keys. `recipe`: with them. `values`: by key, in the order of OPEN. `why`: machine and model in words.
    `engines`: those of this machine, or why there are none."""

    recipe: Recipe
    values: dict[str, Any]
    why: str
    engines: Engines | ModelError

    @property
    def words(self) -> str | None:
        """A line for the user; None if only keys that nearly every recipe leaves open were resolved."""
        usual = {_SHARE: PAPER_SHARE, _SEQUENCES: self.values.get(_SEQUENCES), _STANDBY: self.values.get(_STANDBY)}
        told = {key: value for key, value in self.values.items() if key not in usual or usual[key] != value}
        shown = ", ".join(f"{key}: {str(value).lower()}" for key, value in told.items())
        return f"what the recipe leaves open, for {self.why}: {shown}" if told.keys() - {"model.dtype"} else None


def close(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> Closed:
    """Choose the engines, and resolve the open keys, for a machine. Without a shape a model counts as large, unless it
    is built in."""
    open_keys = [key for key in OPEN if _value(recipe, key) == "auto"]
    large = not recipe.model.name.startswith(BUILTIN_PREFIX) if shape is None else shape.parameters >= LARGE
    in_4_bits = (large and machine.quantises) or (shape is not None and shape.quantized)
    values: dict[str, Any] = {
        "model.load_in_4bit": in_4_bits and recipe.model.lora is not None,
        "model.dtype": "bfloat16" if (machine.capability or (0, 0)) >= BFLOAT16 else "float32",
        "model.gradient_checkpointing": True,
        "optimizer.name": "paged_adamw_8bit" if large and machine.quantises else "adamw",
        _SHARE: PAPER_SHARE,
    }

    def with_these() -> Recipe:
        return recipe.with_values({key: values[key] for key in open_keys if key in values})

    engines = _engines(with_these(), machine)
    if open_keys and shape is not None and not isinstance(engines, ModelError):
        if engines.shared:
            values[_SHARE] = _share(with_these(), machine, shape, engines)
        values["model.gradient_checkpointing"] = not _has_room(with_these(), machine, shape, engines)
        if engines.engine == "vllm" and recipe.generates:
            values[_SEQUENCES] = _sequences(with_these(), machine, shape, engines, wanted=_in_flight(recipe))
        if engines.shared and recipe.generates:
            values[_STANDBY] = "never" if _fits_awake(with_these(), machine, shape, engines) else "always"
    size = f"{shape.parameters / 1e6:,.1f} million weights" if shape else "a model of unknown size"
    decided = {key: values[key] for key in open_keys if key in values}
    return Closed(with_these(), decided, f"{machine} and {size}", engines)


def for_measuring(
    recipe: Recipe, machine: Machine, shape: ModelShape | None, engines: Engines, keep: Collection[str] = ()
) -> Recipe:
    """Return the recipe for measuring only. `keep`: keys that do not change.

    A shared engine also gets the memory that training would need, but leaves room for measuring the longest row beside
    it, and samples as many sequences as its cache then holds.
    """
    if engines.engine != "vllm":
        return recipe
    if engines.shared and _SHARE not in keep:
        recipe = recipe.with_values({_SHARE: _share_for_measuring(recipe, machine, shape, engines)})
    if _SEQUENCES not in keep:
        recipe = recipe.with_values({_SEQUENCES: "auto"})
        if shape is not None:
            sequences = _sequences(recipe, machine, shape, engines, wanted=MOST_SEQUENCES, measures=True)
            recipe = recipe.with_values({_SEQUENCES: sequences})
    return recipe


def _share_for_measuring(recipe: Recipe, machine: Machine, shape: ModelShape | None, engines: Engines) -> float:
    from gtpo_cli.machine.memory import best_memory, memory_of

    if shape is None:
        return _MEASURING_SHARE
    completion, prompt = _longest(recipe, shape, measures=True)
    for share in reversed((PAPER_SHARE, *(each for each in _SHARES if each <= _MEASURING_SHARE))):
        tried = recipe.with_values({_SHARE: share})
        need = partial(memory_of, tried, shape, engines, prompt_tokens=prompt, measures=True)
        if best_memory(need, completion, machine.memory):
            return share
    return PAPER_SHARE


def _value(recipe: Recipe, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(recipe, section), name)


def _engines(recipe: Recipe, machine: Machine) -> Engines | ModelError:
    capability = machine.capability
    try:
        return choose_engines(recipe, gpu=capability is not None, installed=machine.libraries, capability=capability)
    except ModelError as error:
        return error


def _share(recipe: Recipe, machine: Machine, shape: ModelShape, engines: Engines) -> float:
    """Choose vLLM's share for the longest prompts, or for the shortest if those do not fit: the data may be short."""
    from gtpo_cli.machine.memory import best_memory, memory_of  # imports torch

    wanted = recipe.rollout.completions_at_once
    completion, longest_prompt = _longest(recipe, shape)
    for prompt in (longest_prompt, 0):
        at_once: dict[float, int] = {}
        for share in (PAPER_SHARE, *_SHARES):
            tried = recipe.with_values({_SHARE: share})
            need = partial(memory_of, tried, shape, engines, prompt_tokens=prompt)
            if memory := best_memory(need, completion, machine.memory):
                at_once[share] = min(memory.sequences or 0, wanted)
        if at_once:
            return max(at_once, key=lambda share: at_once[share])  # of several the smallest
    return PAPER_SHARE


def _in_flight(recipe: Recipe) -> int:
    """Return the most completions that training or the probe before it samples at once."""
    probed = recipe.objective.probe.num_prompts if recipe.objective.initial_entropy is None else 0
    return max(recipe.rollout.completions_at_once, probed)


def _sequences(
    recipe: Recipe, machine: Machine, shape: ModelShape, engines: Engines, *, wanted: int, measures: bool = False
) -> int:
    """Return how many of the wanted sequences the cache holds at a fifth of the greatest length.

    This is the mean length in the hours of `gtpo plan`. If sequences get longer, vLLM makes some wait.
    """
    from gtpo_cli.machine.memory import memory_of

    completion, _ = _longest(recipe, shape, measures=measures)
    of = memory_of(
        recipe, shape, engines, prompt_tokens=0, completion_tokens=max(1, completion // 5), gpu=machine.memory, limit=1,
        measures=measures,
    )  # fmt: skip
    return max(1, min(wanted, of.sequences or 0, MOST_SEQUENCES))


def _fits_awake(recipe: Recipe, machine: Machine, shape: ModelShape, engines: Engines) -> bool:
    """Return whether training fits beside the awake engine with the recipe's micro-batch, at the longest prompt."""
    from gtpo_cli.machine.memory import memory_of

    awake = recipe.with_values({_STANDBY: "never"})
    completion, prompt = _longest(recipe, shape)
    of = memory_of(awake, shape, engines, prompt_tokens=prompt, completion_tokens=completion, gpu=machine.memory)
    return of.peak <= AWAKE * machine.memory


def _has_room(recipe: Recipe, machine: Machine, shape: ModelShape, engines: Engines) -> bool:
    """Return whether all activations of the largest forward fit in half of the memory, as the plan is an estimate."""
    from gtpo_cli.machine.memory import memory_of

    kept = recipe.with_values({"model.gradient_checkpointing": False})
    completion, prompt = _longest(recipe, shape)
    of = memory_of(kept, shape, engines, prompt_tokens=prompt, completion_tokens=completion, gpu=machine.memory)
    return of.forward <= machine.memory / 2


def _longest(recipe: Recipe, shape: ModelShape, *, measures: bool = False) -> tuple[int, int]:
    """Return the tokens of completion and prompt that take the most memory together."""
    context = min(recipe.model.max_seq_length, shape.positions or recipe.model.max_seq_length)
    completion = recipe.rollout.max_completion_tokens
    if measures:
        completion = max(completion, recipe.evaluation.max_completion_tokens)
    completion = min(completion, context - 1)
    return completion, min(recipe.data.max_prompt_tokens, context - completion)
