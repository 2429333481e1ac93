"""Write a first recipe, with comments, for a model, data and a GPU.

It has the paper's settings if they fit by the plan, else the largest that fit. Without a GPU it runs on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import yaml

from gtpo_cli.data.guess import columns_of, golds_are_text, guessed_data, place_asked
from gtpo_cli.errors import GtpoError, RecipeError
from gtpo_cli.machine.fit import Plan, make_plan
from gtpo_cli.machine.installed import GIB, Card
from gtpo_cli.machine.memory import best_memory, memory_of
from gtpo_cli.machine.open_keys import LARGE, close, machine_with, main_memory
from gtpo_cli.machine.ready import check_data
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy.tiny import BUILTIN_PREFIX
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.recipe.data import OWN, PAPER_SYSTEM_PROMPT, SourceRecipe
from gtpo_cli.text import one_line

_WHERE = "gtpo init"  # in messages
_CPU_SHARE = 0.5  # share of a machine's memory for 32-bit weights; a step needs the rest
_SHARES = tuple(percent / 100 for percent in range(40, 95, 5))  # of the GPU, for the sampling engine

Document = dict[str, dict[str, Any]]


class RecipeSize(NamedTuple):
    """The sizes in a recipe that shrink until it fits."""

    rank: int
    prompt: int
    completion: int
    group: int


RECIPE_SIZES = (
    RecipeSize(128, 4000, 1500, 8),  # the paper's
    RecipeSize(64, 2000, 1500, 8),
    RecipeSize(64, 1024, 1024, 8),
    RecipeSize(32, 1024, 1024, 8),
    RecipeSize(32, 512, 768, 8),
    RecipeSize(16, 512, 512, 8),
    RecipeSize(16, 512, 512, 4),
    RecipeSize(8, 256, 256, 4),
)
CPU_SIZE = RecipeSize(16, 512, 256, 8)
_TEXT_PROMPT = PAPER_SYSTEM_PROMPT.replace(" for solving math problems", "")
_NOTES = {
    "model.name": "a hub id, a folder, or builtin:tiny",
    "model.load_in_4bit": "for the base weights; what is trained is the adapter, in 32 bits",
    "model.max_seq_length": "prompt and completion together, in tokens",
    "model.lora": "the adapter; the paper's rank is 128",
    "data.columns": "what the data call them",
    "data.gold": "how the gold answer stands in its column: column, hashes (####), boxed, or file.py:function",
    "data.held_out": "share of the questions kept from training, for gtpo eval",
    "data.max_prompt_tokens": "longer prompts are dropped, and counted",
    "data.system_prompt_preset": "the questions ask for the answer themselves",
    "data.system_prompt": "say here what your task is; the tags are those of rewards.format.tags",
    "rewards.format": "the tag that the model's chat template opens",
    "rewards.answer": "where the questions ask for it: boxed, last_line (Answer: 42) or hashes (####)",
    "rewards.accuracy": "text: as written; mathematics: 0.5 is 1/2",
    "rollout.group_size": "completions of a prompt, which are compared with each other",
    "rollout.prompts_per_step": "prompts in one update",
    "rollout.max_completion_tokens": "a completion is cut there",
    "rollout.gpu_memory_utilization": "of the GPU for the engine that samples",
    "objective.name": "or grpo, dr_grpo, dapo, gspo, cispo, rloo, sft",
    "optimizer.learning_rate": "the first thing to try others of",
    "training.micro_batch_size": "completions in one forward; the gradient does not depend on it",
    "training.epochs": "passes over the data; max_steps: N ends earlier",
    "training.max_steps": "updates",
    "training.save_every": "updates between checkpoints",
}


class FirstRecipe(NamedTuple):
    """The recipe's text, its plan, its needs in words, a line on engines and hours, and the columns of the data that
    it leaves out."""

    text: str
    plan: Plan
    needs: str
    estimates: list[str]


def first_recipe(model: str, data: Mapping[str, Any], gpu: Card | float | None) -> FirstRecipe:
    """Write a recipe. `data`: benchmark, and path or dataset and columns if it is your own. `gpu`: None for a CPU.

    Raises RecipeError if nothing fits or local data cannot be used, ModelError without the model's configuration.
    """
    known = _data(data)
    place = place_asked(_source(known)) if data["benchmark"] in OWN else None
    if place is not None:  # a second prompt would ask for another form
        known["system_prompt_preset"] = "none"
        del known["system_prompt"]
    if model.startswith(BUILTIN_PREFIX):
        known.pop("system_prompt", None)  # it has none
        document = _builtin(model, known)
    else:
        document = _on_cpu(model, known) if gpu is None else _largest(model, known, gpu)
    if place is not None:
        document["rewards"] = {"answer": place}
    if data["benchmark"] in OWN and golds_are_text(_source(known)):
        if "system_prompt" in document["data"]:
            document["data"]["system_prompt"] = _TEXT_PROMPT
        document.setdefault("rewards", {})["accuracy"] = {"equality": "text"}
    if tag := _opened_tag(model, known):
        if place is None:
            prompt = document["data"].get("system_prompt", PAPER_SYSTEM_PROMPT)
            document["data"]["system_prompt"] = prompt.replace("reasoning>", f"{tag}>")
        document.setdefault("rewards", {})["format"] = {"tags": {"reasoning": tag}}
    recipe = _recipe(document)
    if recipe.data.path is not None or recipe.data.dataset is not None:
        check_data(recipe)  # also where the plan cannot, without a tokenizer
    plan = make_plan(recipe, gpu=gpu)
    if plan.counts is None and not plan.downloads:  # nothing is elsewhere, so that stays so
        raise RecipeError(f"{_WHERE}: {plan.notes[-1]}")
    if not plan.fits and gpu is not None:
        raise RecipeError(
            f"{_WHERE}: {model} does not fit {plan.gpu / GIB:.4g} GiB, even with an adapter of rank "
            f"{RECIPE_SIZES[-1].rank} and completions of {RECIPE_SIZES[-1].completion} tokens; choose a smaller "
            "model or a larger GPU (gtpo plan shows what takes the memory)"
        )
    estimates: list[str] = []
    if gpu is None and not model.startswith(BUILTIN_PREFIX):
        needs = f"a CPU: {plan.shape.parameters * 4 / GIB:.1f} GiB of 32-bit weights, and what a step of them takes"
    else:
        where = "" if plan.card is None else f" ({plan.card.name})"
        needs = f"{plan.memory.peak / GIB:.1f} of {plan.gpu / GIB:.4g} GiB{where} by gtpo plan"
        estimates = [_engines_and_hours(plan)]
    text = "\n".join([*_heading(recipe, needs, estimates), *recipe_lines(document)]) + "\n"
    return FirstRecipe(text, plan, needs, estimates)


def _opened_tag(model: str, data: Mapping[str, Any]) -> str | None:
    """Return the tag of a model that thinks, which its chat template opens; None without one, or if unknown here."""
    try:
        return Parts(_recipe({"model": {"name": model}, "data": dict(data)})).encoder.other_tag
    except GtpoError:  # the plan says why
        return None


def _engines_and_hours(plan: Plan) -> str:
    if not plan.hours:
        return f"On {plan.engines}"
    mean, hours = plan.hours[0]
    return f"On {plan.engines}; estimated: {hours} at a mean completion of {mean:,} tokens"


def _largest(model: str, data: Mapping[str, Any], gpu: Card | float | None) -> Document:
    """Return the first size that fits, else the last."""
    widest = _document(model, data, RECIPE_SIZES[0])
    plan = make_plan(_recipe(widest), gpu=gpu)  # reads the data once, for their longest prompt
    four_bit = plan.shape.quantized or plan.shape.parameters >= LARGE
    for size in RECIPE_SIZES:
        size = _within(size, plan)
        fitting: list[tuple[int, Document]] = []  # sampled at once
        for share in _SHARES if plan.engines.shared else (None,):
            document = _document(model, data, size, share=share, four_bit=four_bit)
            recipe = close(_recipe(document), machine_with(plan.card or plan.gpu), plan.shape).recipe
            need = partial(memory_of, recipe, plan.shape, plan.engines, prompt_tokens=size.prompt)
            taken = best_memory(need, size.completion, plan.gpu)
            if taken is not None:
                if taken.rows < size.group:
                    document["training"]["micro_batch_size"] = taken.rows
                fitting.append((min(taken.sequences or 0, size.group), document))
        if fitting:
            return max(fitting, key=lambda pair: pair[0])[1]  # of several the least share
    return document


def _within(size: RecipeSize, plan: Plan) -> RecipeSize:
    """Limit prompts to the data's longest, and prompt and completion to the model's context."""
    positions = plan.shape.positions or math.inf
    longest = 64 * math.ceil(plan.prompt_tokens / 64) if plan.counts and not plan.published else math.inf
    prompt = int(min(size.prompt, longest, positions // 2))
    return size._replace(prompt=prompt, completion=int(min(size.completion, positions - prompt)))


def _on_cpu(model: str, data: Mapping[str, Any]) -> Document:
    """Write a recipe for a CPU: an adapter on 32-bit weights, sampling by transformers, and small steps.

    Learning rate and betas suit a run of a hundred such steps. Raises RecipeError if the weights would fill the memory.
    """
    tried = _cpu_document(model, data, CPU_SIZE)
    plan = make_plan(_recipe(tried), gpu=None)
    here, weights = main_memory(), plan.shape.parameters
    if 4 * weights > _CPU_SHARE * here:
        raise RecipeError(
            f"{_WHERE}: {model} has {weights / 1e9:.1f} billion weights, {4 * weights / GIB:.1f} GiB in 32 bits, and "
            f"this machine has no GPU and {here / GIB:.1f} GiB; name the GPU that will train it (--gpu 24GiB), or "
            "choose a smaller model"
        )
    return _cpu_document(model, data, _within(CPU_SIZE, plan))


def _lora(size: RecipeSize, *, alpha: int) -> dict[str, Any]:
    return {"rank": size.rank, "alpha": alpha, "target_modules": "all-linear"}


def _cpu_document(model: str, data: Mapping[str, Any], size: RecipeSize) -> Document:
    document = _document(model, data, size, four_bit=False)
    document["model"] |= {"gradient_checkpointing": False, "lora": _lora(size, alpha=2 * size.rank)}
    document["rollout"] = {"engine": "transformers"} | document["rollout"] | {"prompts_per_step": 4}
    document["optimizer"] |= {"learning_rate": 1e-4, "betas": [0.9, 0.95]}
    document["training"] = {"max_steps": 100, "micro_batch_size": "auto", "save_every": 25}
    return document


def _document(
    model: str, data: Mapping[str, Any], size: RecipeSize, *, share: float | None = None, four_bit: bool = True
) -> Document:
    rollout: dict[str, Any] = {
        "group_size": size.group, "prompts_per_step": 1, "max_completion_tokens": size.completion,
    }  # fmt: skip
    if share is not None:
        rollout["gpu_memory_utilization"] = share
    return {
        "model": {
            "name": model, "load_in_4bit": four_bit, "max_seq_length": size.prompt + size.completion,
            "lora": _lora(size, alpha=size.rank),
        },
        "data": dict(data) | {"max_prompt_tokens": size.prompt},
        "rollout": rollout,
        "objective": {"name": "gtpo"},
        "optimizer": {"name": "paged_adamw_8bit" if four_bit else "adamw", "learning_rate": 1e-6},
        "training": {"epochs": 1, "micro_batch_size": "auto", "save_every": 500},
    }  # fmt: skip


def _builtin(model: str, data: Mapping[str, Any]) -> Document:
    """Write a recipe like recipes/tiny_arithmetic.yaml: all weights train, on a CPU."""
    return {
        "model": {"name": model, "max_seq_length": 512},
        "data": dict(data) | {"max_prompt_tokens": 64},
        "rollout": {"group_size": 8, "prompts_per_step": 8, "max_completion_tokens": 64},
        "objective": {"name": "gtpo"},
        "optimizer": {"learning_rate": 2e-4, "betas": [0.9, 0.95]},
        "training": {"max_steps": 600, "save_every": 100},
    }


def _data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Complete `data` from its first rows, unless it is a benchmark."""
    if data["benchmark"] not in OWN:
        return dict(data)
    guessed = guessed_data(SourceRecipe.model_validate(data))
    if unknown := [meaning for meaning in ("question", "answer") if meaning not in guessed["columns"]]:
        names = columns_of(SourceRecipe.model_validate(data))
        raise RecipeError(
            f"{_WHERE}: no column is surely the {' or the '.join(unknown)}; found {', '.join(names) or 'none'}; name "
            f"{'it' if len(unknown) == 1 else 'them'}: {' '.join(f'--{meaning} NAME' for meaning in unknown)}"
        )
    return dict(data) | guessed | {"system_prompt": PAPER_SYSTEM_PROMPT}


def _source(known: Mapping[str, Any]) -> SourceRecipe:
    return SourceRecipe.model_validate({key: known[key] for key in known if not key.startswith("system_prompt")})


def _recipe(document: Document) -> Recipe:
    return build_recipe(document, where=_WHERE)


def _heading(recipe: Recipe, needs: str, estimates: list[str]) -> Iterator[str]:
    yield f"# GTPO on {one_line(recipe.data.name)} with {one_line(recipe.model.name)}, written by gtpo init."
    yield f"# Needs {needs}. All other keys have their defaults: gtpo recipes show FILE"
    yield from (f"# {line}." for line in estimates)


def recipe_lines(document: Mapping[str, Any], notes: Mapping[str, str] = _NOTES) -> Iterator[str]:
    """Format a recipe as YAML with one key a line; `notes`: the comment for each key."""
    for section, values in document.items():
        if not isinstance(values, Mapping):
            yield _line(section, values, notes.get(section))
            continue
        yield f"{section}:"
        for key, value in values.items():
            yield "  " + _line(key, value, notes.get(f"{section}.{key}"))


def _line(key: str, value: Any, note: str | None) -> str:
    return f"{key}: {_flow(value)}" + (f"  # {note}" if note else "")


def _flow(value: Any) -> str:
    """Format a value on one line, with quotes if needed."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=False, width=math.inf, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
